-- The ledger is the only writer of the balances. `inventory_entry` and `inventory_movement` are inserted into and
-- never changed; a level begins at nought; inserting movements adds them up, once a statement.
-- The table is named with its schema: pg_restore works without a search path.

-- One level after another, each by its key, also where this was planned while the tables were empty.
CREATE FUNCTION inventory_apply_movements() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    change record;
BEGIN
    FOR change IN
        SELECT level_id,
               sum(CASE 1 WHEN target THEN quantity WHEN source THEN -quantity ELSE 0 END) AS available,
               sum(CASE 2 WHEN target THEN quantity WHEN source THEN -quantity ELSE 0 END) AS reserved,
               sum(CASE 3 WHEN target THEN quantity WHEN source THEN -quantity ELSE 0 END) AS committed,
               sum(CASE 4 WHEN target THEN quantity WHEN source THEN -quantity ELSE 0 END) AS unavailable
          FROM added GROUP BY level_id ORDER BY level_id
    LOOP
        UPDATE {schema}.inventory_level
           SET available = available + change.available, reserved = reserved + change.reserved,
               committed = committed + change.committed, unavailable = unavailable + change.unavailable
         WHERE id = change.level_id;
    END LOOP;
    RETURN NULL;
END $$;

CREATE TRIGGER inventory_apply AFTER INSERT ON inventory_movement
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION inventory_apply_movements();

CREATE FUNCTION inventory_refuse_balances() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('inventory.archiving', true) = txid_current()::text THEN
        RETURN NEW;  -- `manage.py stock reconcile`, which believes the ledger
    END IF;
    RAISE EXCEPTION 'inventory: the balances of level % change by a movement only', OLD.id
        USING ERRCODE = 'integrity_constraint_violation',
              HINT = 'Use inventory.stock: receive, sell, adjust, count ...';
END $$;

-- The trigger above updates at depth 1; whatever updates at depth 0 isn't the ledger.
CREATE TRIGGER inventory_balances BEFORE UPDATE ON inventory_level FOR EACH ROW
    WHEN (pg_trigger_depth() = 0 AND (OLD.available, OLD.reserved, OLD.committed, OLD.unavailable, OLD.item_id)
          IS DISTINCT FROM (NEW.available, NEW.reserved, NEW.committed, NEW.unavailable, NEW.item_id))
    EXECUTE FUNCTION inventory_refuse_balances();

CREATE FUNCTION inventory_begin_level() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.available = 0; NEW.reserved = 0; NEW.committed = 0; NEW.unavailable = 0;
    RETURN NEW;
END $$;

CREATE TRIGGER inventory_begin BEFORE INSERT ON inventory_level FOR EACH ROW
    WHEN ((NEW.available, NEW.reserved, NEW.committed, NEW.unavailable) IS DISTINCT FROM (0::bigint, 0::bigint, 0::bigint, 0::bigint))
    EXECUTE FUNCTION inventory_begin_level();

-- `manage.py stock archive` may replace old rows by one opening balance, in the transaction that names itself.
CREATE FUNCTION inventory_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('inventory.archiving', true) = txid_current()::text THEN
        RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    END IF;
    RAISE EXCEPTION 'inventory: % is a ledger, rows of it are never changed or deleted', TG_TABLE_NAME
        USING ERRCODE = 'integrity_constraint_violation', HINT = 'Post an entry that corrects the wrong one.';
END $$;

CREATE TRIGGER inventory_no_delete BEFORE DELETE ON inventory_movement
    FOR EACH ROW EXECUTE FUNCTION inventory_refuse_change();
CREATE TRIGGER inventory_no_update BEFORE UPDATE ON inventory_movement
    FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION inventory_refuse_change();
CREATE TRIGGER inventory_no_delete BEFORE DELETE ON inventory_entry
    FOR EACH ROW EXECUTE FUNCTION inventory_refuse_change();
-- The answer to the caller is written once, behind the entry.
CREATE TRIGGER inventory_no_update BEFORE UPDATE ON inventory_entry FOR EACH ROW
    WHEN ((OLD.id, OLD.cause, OLD.kind, OLD.fingerprint, OLD.of_id, OLD.actor, OLD.created_at)
          IS DISTINCT FROM (NEW.id, NEW.cause, NEW.kind, NEW.fingerprint, NEW.of_id, NEW.actor, NEW.created_at)
          OR OLD.answer IS NOT NULL AND OLD.answer IS DISTINCT FROM NEW.answer)
    EXECUTE FUNCTION inventory_refuse_change();

CREATE INDEX inventory_entry_of ON inventory_entry (of_id) WHERE of_id IS NOT NULL;
CREATE INDEX inventory_reservation_due ON inventory_reservation (expires_at) WHERE state = 'live';
CREATE INDEX inventory_reservation_ref ON inventory_reservation (reference) WHERE reference <> '';

-- Room for the next version of a row in its page: with 150,000 updates of 50,000 levels 97.8 % are HOT at 100, all at
-- 90; while a long transaction keeps old versions from being pruned 0 % at 100, 28 % at 90, 75 % at 80. No
-- vacuum was run, and neither table nor indexes grew, so autovacuum is left as it is.
ALTER TABLE inventory_level SET (fillfactor = 80);
-- Reservations end within minutes and leave the index of those that are due: behind 300,000 that had ended the search
-- for overdue ones read 4,735 pages (83 ms), after a vacuum one.
ALTER TABLE inventory_reservation SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
