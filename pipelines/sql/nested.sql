-- name: cube
SELECT lncoins, idp, hlthp, COUNT(*) FROM rand GROUP BY CUBE (lncoins, idp, hlthp);
-- name: rollup
SELECT disea, physlm, COUNT(*) FROM rand GROUP BY ROLLUP (disea, physlm);
-- name: pairs
SELECT lncoins, idp, COUNT(*) FROM rand GROUP BY lncoins, idp;
-- name: rates
SELECT lncoins, COUNT(*) FROM rand GROUP BY lncoins;
-- name: severe
SELECT disea, COUNT(*) FROM rand GROUP BY disea;
-- name: half
SELECT CASE WHEN disea < 10 THEN 'low' ELSE 'high' END AS burden, COUNT(*) FROM rand GROUP BY burden
