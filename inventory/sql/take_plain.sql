-- Most sales are of one item that isn't put together from others and lies at one location: this takes the units of
-- several such entries in a fifth of the time of `take.sql`, which decides all others.
-- Returns the ids of the posted entries by cause; NULL: the item isn't of that kind.
-- Planned while the tables are small, it has to read by key once they aren't: hence no sequential scans.
CREATE FUNCTION inventory_take_plain(entries json, item_sku text, place bigint, goal smallint, patience text)
RETURNS json LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    plain record;
    units bigint;
    ids json;
BEGIN
    SELECT min(level.id) AS level_id, min(available + backorder_limit - safety_stock) AS units INTO plain
      FROM inventory_level AS level JOIN inventory_location AS location ON location.id = level.location_id
     WHERE level.item_id = (SELECT id FROM inventory_item WHERE sku = item_sku) AND location.active
       AND (place IS NULL OR location.id = place)
       AND NOT EXISTS (SELECT FROM inventory_component AS part WHERE part.item_id = level.item_id)
    HAVING count(*) = 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF plain.units < (entries->0->>'quantity')::bigint THEN
        RETURN '{}';
    END IF;
    IF patience IS NOT NULL THEN
        PERFORM set_config('lock_timeout', patience, true);
    END IF;
    SELECT available + backorder_limit - safety_stock INTO units
      FROM inventory_level WHERE id = plain.level_id FOR NO KEY UPDATE;
    WITH asked AS (
        SELECT *, sum(quantity) OVER (ORDER BY no) AS high
          FROM json_to_recordset(entries)
               AS t(no int, cause text, kind smallint, fingerprint bigint, actor text, quantity bigint)),
    posted AS (
        INSERT INTO inventory_entry (cause, kind, fingerprint, actor, created_at)
        SELECT cause, kind, fingerprint, actor, statement_timestamp() FROM asked WHERE high <= units ORDER BY no
        ON CONFLICT (cause) DO NOTHING RETURNING id, cause),
    moved AS (
        INSERT INTO inventory_movement (entry_id, level_id, source, target, quantity)
        SELECT posted.id, plain.level_id, 1, goal, quantity FROM posted JOIN asked USING (cause))
    SELECT coalesce(json_object_agg(posted.cause, posted.id), '{}') INTO ids FROM posted;
    RETURN ids;
END $$;
