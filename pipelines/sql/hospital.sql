-- name: by_sex
SELECT p.sex, e.kind, COUNT(*) FROM encounters e JOIN patients p USING (patient) GROUP BY p.sex, e.kind;
-- name: by_month
SELECT e.month, COUNT(*) FROM encounters e JOIN patients p USING (patient) GROUP BY e.month;
-- name: quarters
SELECT (e.month + 2) // 3 AS quarter, p.age, COUNT(*) FROM encounters e JOIN patients p USING (patient)
GROUP BY quarter, p.age;
-- name: old
SELECT p.sex, COUNT(*) FROM encounters e JOIN patients p USING (patient) WHERE p.age >= 65 GROUP BY p.sex;
-- name: emergencies
SELECT p.age, COUNT(*) FILTER (WHERE e.kind = 'emergency') / COUNT(*) AS share
FROM encounters e JOIN patients p USING (patient) GROUP BY p.age;
-- name: cube
SELECT p.sex, p.age, e.kind, COUNT(*) FROM encounters e JOIN patients p USING (patient)
GROUP BY CUBE (p.sex, p.age, e.kind)
