-- Turns a table into one that is partitioned by the hash of a column, in one transaction; everything else about it
-- stays: columns, defaults, identity, checks, foreign keys in both directions, indexes, triggers, privileges aside.
--
--     psql -1 -f ops/postgresql/partition_by_hash.sql
--     SELECT partition_by_hash('orders_order', 'id', 16);
--     DROP FUNCTION partition_by_hash;
--
-- A unique constraint gets the column as well, as PostgreSQL demands. So choose a column that the constrained ones
-- determine: an order's id is its key. The table is locked meanwhile.
CREATE FUNCTION partition_by_hash(name regclass, key name, partitions int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    plain text := name::text;
    old text := plain || '_old';
    indexes text[] := ARRAY(
        SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = name
           AND indexrelid NOT IN (SELECT conindid FROM pg_constraint WHERE conrelid = name));
    triggers text[] := ARRAY(
        SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = name AND NOT tgisinternal);
    own text[] := ARRAY(
        SELECT format('ALTER TABLE %s ADD CONSTRAINT %I %s', plain, conname,
                      CASE WHEN contype IN ('p', 'u') AND NOT attnum = ANY(conkey)
                           THEN regexp_replace(pg_get_constraintdef(c.oid), '\)', format(', %I)', key))
                           ELSE pg_get_constraintdef(c.oid) END)
          FROM pg_constraint c JOIN pg_attribute ON attrelid = name AND attname = key
         WHERE conrelid = name AND contype IN ('p', 'u', 'f') AND conparentid = 0
         ORDER BY contype <> 'p');
    others text[] := ARRAY(
        SELECT format('ALTER TABLE %s ADD CONSTRAINT %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
          FROM pg_constraint WHERE confrelid = name AND contype = 'f');
    statement text;
    leaving record;
BEGIN
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', name);
    FOR leaving IN SELECT conrelid::regclass AS place, conname FROM pg_constraint WHERE confrelid = name AND contype = 'f'
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', leaving.place, leaving.conname);
    END LOOP;
    EXECUTE format('ALTER TABLE %s RENAME TO %I', name, old);
    EXECUTE format('CREATE TABLE %s (LIKE %I INCLUDING ALL EXCLUDING INDEXES) PARTITION BY HASH (%I)', plain, old, key);
    FOR number IN 0 .. partitions - 1
    LOOP
        EXECUTE format('CREATE TABLE %I PARTITION OF %s FOR VALUES WITH (MODULUS %s, REMAINDER %s)',
                       plain || '_' || number, plain, partitions, number);
    END LOOP;
    EXECUTE format('INSERT INTO %s OVERRIDING SYSTEM VALUE SELECT * FROM %I', plain, old);
    FOR leaving IN  -- numbers go on behind the highest that was ever given
        SELECT attname, pg_get_serial_sequence(old, attname) AS last_one FROM pg_attribute
         WHERE attrelid = old::regclass AND attidentity <> ''
    LOOP
        EXECUTE format('SELECT setval(pg_get_serial_sequence(%L, %L), last_value, is_called) FROM %s',
                       plain, leaving.attname, leaving.last_one);
    END LOOP;
    EXECUTE format('DROP TABLE %I', old);
    FOREACH statement IN ARRAY own || indexes || triggers || others
    LOOP
        EXECUTE statement;
    END LOOP;
END $$;
