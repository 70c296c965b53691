-- name: visits
SELECT mdvis, COUNT(*) FROM rand GROUP BY mdvis;
-- name: plans
SELECT lncoins, idp, COUNT(*) FROM rand GROUP BY lncoins, idp;
-- name: mean_visits
SELECT lncoins, AVG(mdvis) FROM rand GROUP BY lncoins;
-- name: any_visit
SELECT idp, COUNT(*) FILTER (WHERE mdvis > 0) / COUNT(*) AS share FROM rand GROUP BY idp;
-- name: many_visits
SELECT disea, COUNT(*) FROM rand WHERE mdvis >= 10 GROUP BY disea;
-- name: health
SELECT hlthg, hlthf, hlthp, COUNT(*) FROM rand GROUP BY hlthg, hlthf, hlthp;
-- name: limited
SELECT CASE WHEN physlm < 0.5 THEN 'no' ELSE 'yes' END AS limited, SUM(mdvis) FROM rand GROUP BY limited;
-- name: incentive
SELECT lpi, COUNT(*) FROM rand GROUP BY ROLLUP (lpi);
-- name: expenditure
SELECT fmde, COUNT(*) FROM rand WHERE idp = 1 GROUP BY fmde;
-- name: poor_health
SELECT hlthp, COUNT(*), SUM(mdvis) FROM rand GROUP BY hlthp;
-- name: ranges
SELECT CASE WHEN mdvis = 0 THEN 'none' WHEN mdvis < 5 THEN 'few' ELSE 'many' END AS visits, idp, COUNT(*)
FROM rand GROUP BY visits, idp;
-- name: all
SELECT COUNT(*), AVG(mdvis) FROM rand
