-- See postgresql.sql. `inventory_posting` has a row for as long as the inserting trigger runs: what updates
-- balances without one isn't the ledger.
CREATE TABLE inventory_posting (level_id bigint NOT NULL PRIMARY KEY);
--;
CREATE TRIGGER inventory_apply AFTER INSERT ON inventory_movement BEGIN
    INSERT INTO inventory_posting (level_id) VALUES (NEW.level_id);
    UPDATE inventory_level
       SET available = available + CASE 1 WHEN NEW.target THEN NEW.quantity WHEN NEW.source THEN -NEW.quantity ELSE 0 END,
           reserved = reserved + CASE 2 WHEN NEW.target THEN NEW.quantity WHEN NEW.source THEN -NEW.quantity ELSE 0 END,
           committed = committed + CASE 3 WHEN NEW.target THEN NEW.quantity WHEN NEW.source THEN -NEW.quantity ELSE 0 END,
           unavailable = unavailable + CASE 4 WHEN NEW.target THEN NEW.quantity WHEN NEW.source THEN -NEW.quantity ELSE 0 END
     WHERE id = NEW.level_id;
    DELETE FROM inventory_posting WHERE level_id = NEW.level_id;
END;
--;
CREATE TRIGGER inventory_balances BEFORE UPDATE ON inventory_level
WHEN (OLD.available <> NEW.available OR OLD.reserved <> NEW.reserved OR OLD.committed <> NEW.committed
      OR OLD.unavailable <> NEW.unavailable OR OLD.item_id <> NEW.item_id)
     AND NOT EXISTS (SELECT 1 FROM inventory_posting WHERE level_id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'inventory: the balances of a level change by a movement only; use inventory.stock');
END;
--;
CREATE TRIGGER inventory_begin AFTER INSERT ON inventory_level
WHEN NEW.available <> 0 OR NEW.reserved <> 0 OR NEW.committed <> 0 OR NEW.unavailable <> 0
BEGIN
    INSERT INTO inventory_posting (level_id) VALUES (NEW.id);
    UPDATE inventory_level SET available = 0, reserved = 0, committed = 0, unavailable = 0 WHERE id = NEW.id;
    DELETE FROM inventory_posting WHERE level_id = NEW.id;
END;
--;
CREATE TRIGGER inventory_no_delete_movement BEFORE DELETE ON inventory_movement
WHEN NOT EXISTS (SELECT 1 FROM inventory_posting WHERE level_id = -1)
BEGIN
    SELECT RAISE(ABORT, 'inventory: movements are never deleted; post an entry that corrects the wrong one'); END;
--;
CREATE TRIGGER inventory_no_update_movement BEFORE UPDATE ON inventory_movement
WHEN (OLD.id <> NEW.id OR OLD.entry_id <> NEW.entry_id OR OLD.level_id <> NEW.level_id
      OR OLD.source <> NEW.source OR OLD.target <> NEW.target OR OLD.quantity <> NEW.quantity)
     AND NOT EXISTS (SELECT 1 FROM inventory_posting WHERE level_id = -1)
BEGIN
    SELECT RAISE(ABORT, 'inventory: movements are never changed; post an entry that corrects the wrong one'); END;
--;
CREATE TRIGGER inventory_no_delete_entry BEFORE DELETE ON inventory_entry
WHEN NOT EXISTS (SELECT 1 FROM inventory_posting WHERE level_id = -1)
BEGIN
    SELECT RAISE(ABORT, 'inventory: entries are never deleted; post one that corrects the wrong one'); END;
--;
CREATE TRIGGER inventory_no_update_entry BEFORE UPDATE ON inventory_entry
WHEN (OLD.id <> NEW.id OR OLD.cause <> NEW.cause OR OLD.kind <> NEW.kind OR OLD.fingerprint <> NEW.fingerprint
      OR OLD.of_id IS NOT NEW.of_id OR OLD.actor <> NEW.actor OR OLD.created_at <> NEW.created_at
      OR (OLD.answer IS NOT NULL AND OLD.answer IS NOT NEW.answer))
     AND NOT EXISTS (SELECT 1 FROM inventory_posting WHERE level_id = -1)
BEGIN
    SELECT RAISE(ABORT, 'inventory: entries are never changed; post one that corrects the wrong one'); END;
--;
-- REPLACE deletes rows without asking the triggers above.
CREATE TRIGGER inventory_no_replace_level BEFORE INSERT ON inventory_level
WHEN EXISTS (SELECT 1 FROM inventory_level WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'UNIQUE constraint failed: inventory_level.id'); END;
--;
CREATE TRIGGER inventory_no_replace_movement BEFORE INSERT ON inventory_movement
WHEN EXISTS (SELECT 1 FROM inventory_movement WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'UNIQUE constraint failed: inventory_movement.id'); END;
--;
CREATE INDEX inventory_entry_of ON inventory_entry (of_id) WHERE of_id IS NOT NULL;
--;
CREATE INDEX inventory_reservation_due ON inventory_reservation (expires_at) WHERE state = 'live';
--;
CREATE INDEX inventory_reservation_ref ON inventory_reservation (reference) WHERE reference <> '';
