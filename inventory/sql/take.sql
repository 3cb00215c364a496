-- Takes units from `available` for one entry or many: all lines of an entry or none, entries in their order.
--   %(entries)s  [{"no": 1, "cause": "order-1", "kind": 2, "fingerprint": 17, "actor": ""}]
--   %(lines)s    [{"no": 1, "sku": "mug", "quantity": 2}]
--   %(target)s   the state that the units go to     %(location)s  take from this location only, or NULL
-- Levels are locked in key order; those of an entry that can't be served as things are aren't locked at all.
-- Every lookup is LATERAL or by ANY: by an index, also where the statement was planned while the tables were empty. A
-- join would have been planned as a scan, and a shop's first rush pays for it: 2.5 ms per sale after 15,000 instead of 0.4.
-- Answers with one row: ids of posted entries by cause; causes that were used before; and for each line of an
-- entry that wasn't posted what there is for it.
WITH asked AS (
    SELECT * FROM json_to_recordset(%(entries)s::json)
                  AS t(no int, cause text, kind smallint, fingerprint bigint, actor text)),
known AS (
    SELECT asked.no, entry.*
      FROM asked CROSS JOIN LATERAL (
           SELECT id, kind, fingerprint, answer FROM inventory_entry WHERE cause = asked.cause LIMIT 1) AS entry),
line AS (
    SELECT t.no, t.sku, t.quantity, item.id AS item_id,
           coalesce(part.part_id, item.id) AS part_id, coalesce(part.quantity, 1) AS per_unit
      FROM json_to_recordset(%(lines)s::json) AS t(no int, sku text, quantity bigint)
      LEFT JOIN LATERAL (SELECT id FROM inventory_item WHERE sku = t.sku LIMIT 1) AS item ON true
      LEFT JOIN LATERAL (
           SELECT part_id, quantity FROM inventory_component WHERE item_id = item.id OFFSET 0) AS part ON true
     WHERE t.no NOT IN (SELECT no FROM known)),
demand AS (
    SELECT no, part_id, sum(quantity * per_unit)::bigint AS units FROM line GROUP BY no, part_id),
seen AS (
    SELECT part_id, there.*
      FROM (SELECT DISTINCT part_id FROM demand) AS part CROSS JOIN LATERAL (
           SELECT array_agg(level.id) AS levels, sum(level.reserved) AS reserved,
                  sum(CASE WHEN location.active
                      THEN greatest(available + backorder_limit - safety_stock, 0) ELSE 0 END)::bigint AS units
             FROM inventory_level AS level JOIN inventory_location AS location ON location.id = level.location_id
            WHERE level.item_id = part.part_id
              AND (%(location)s::bigint IS NULL OR location.id = %(location)s::bigint)) AS there),
hopeful AS (
    SELECT demand.no FROM demand LEFT JOIN seen USING (part_id)
     GROUP BY demand.no HAVING bool_and(coalesce(seen.units, 0) >= demand.units)),
locked AS MATERIALIZED (
    SELECT level.id, level.item_id AS part_id, location.priority,
           level.available + level.backorder_limit - level.safety_stock AS units
      FROM inventory_level AS level JOIN inventory_location AS location ON location.id = level.location_id
     WHERE level.id = ANY (ARRAY(SELECT unnest(seen.levels) FROM demand JOIN seen USING (part_id)
                                  WHERE demand.no IN (SELECT no FROM hopeful)))
       AND location.active AND level.available + level.backorder_limit > level.safety_stock
     ORDER BY level.id FOR NO KEY UPDATE OF level),
total AS (SELECT part_id, sum(units)::bigint AS units FROM locked GROUP BY part_id),
supply AS (
    SELECT id, part_id, sum(units) OVER one_by_one - units AS low, sum(units) OVER one_by_one AS high
      FROM locked WINDOW one_by_one AS (PARTITION BY part_id ORDER BY priority, id)),
wish AS (
    SELECT no, part_id, sum(units) OVER one_by_one - units AS low, sum(units) OVER one_by_one AS high
      FROM demand WHERE no IN (SELECT no FROM hopeful)
    WINDOW one_by_one AS (PARTITION BY part_id ORDER BY no)),
served AS (
    SELECT wish.no FROM wish LEFT JOIN total USING (part_id)
     GROUP BY wish.no HAVING bool_and(coalesce(total.units, 0) >= wish.high)),
posted AS (
    INSERT INTO inventory_entry (cause, kind, fingerprint, actor, created_at)
    SELECT cause, kind, fingerprint, actor, statement_timestamp() FROM asked JOIN served USING (no) ORDER BY no
    ON CONFLICT (cause) DO NOTHING RETURNING id, cause),
moved AS (
    INSERT INTO inventory_movement (entry_id, level_id, source, target, quantity)
    SELECT posted.id, supply.id, 1, %(target)s::smallint,
           least(wish.high, supply.high) - greatest(wish.low, supply.low)
      FROM posted JOIN asked USING (cause) JOIN wish USING (no) JOIN supply USING (part_id)
     WHERE least(wish.high, supply.high) > greatest(wish.low, supply.low))
SELECT (SELECT json_object_agg(cause, id) FROM posted),
       (SELECT json_agg(json_build_array(no, id, kind, fingerprint, answer)) FROM known),
       (SELECT json_agg(json_build_array(no, sku, quantity, item_id, there, reserved, hopeful)) FROM (
            SELECT line.no, line.sku, line.quantity, line.item_id, bool_and(hopeful.no IS NOT NULL) AS hopeful,
                   min((CASE WHEN hopeful.no IS NULL THEN coalesce(seen.units, 0) ELSE coalesce(total.units, 0) END)
                       / line.per_unit)::bigint AS there,
                   coalesce(sum(seen.reserved), 0)::bigint AS reserved
              FROM line LEFT JOIN seen USING (part_id) LEFT JOIN total USING (part_id)
              LEFT JOIN hopeful ON hopeful.no = line.no
             WHERE line.no NOT IN (SELECT no FROM served)
             GROUP BY line.no, line.sku, line.quantity, line.item_id) AS unserved)
