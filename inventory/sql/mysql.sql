-- See postgresql.sql; for MySQL 8 and MariaDB. `inventory_posting` has a row for as long as the inserting trigger
-- runs: what updates balances without one isn't the ledger.
CREATE TABLE inventory_posting (level_id bigint NOT NULL PRIMARY KEY) ENGINE=InnoDB;
--;
CREATE TRIGGER inventory_apply AFTER INSERT ON inventory_movement FOR EACH ROW BEGIN
    INSERT INTO inventory_posting (level_id) VALUES (NEW.level_id);
    UPDATE inventory_level
       SET available = available + CASE 1 WHEN NEW.target THEN NEW.quantity WHEN NEW.source THEN -NEW.quantity ELSE 0 END,
           reserved = reserved + CASE 2 WHEN NEW.target THEN NEW.quantity WHEN NEW.source THEN -NEW.quantity ELSE 0 END,
           committed = committed + CASE 3 WHEN NEW.target THEN NEW.quantity WHEN NEW.source THEN -NEW.quantity ELSE 0 END,
           unavailable = unavailable + CASE 4 WHEN NEW.target THEN NEW.quantity WHEN NEW.source THEN -NEW.quantity ELSE 0 END
     WHERE id = NEW.level_id;
    DELETE FROM inventory_posting WHERE level_id = NEW.level_id;
END
--;
CREATE TRIGGER inventory_balances BEFORE UPDATE ON inventory_level FOR EACH ROW BEGIN
    IF (OLD.available, OLD.reserved, OLD.committed, OLD.unavailable, OLD.item_id)
       <> (NEW.available, NEW.reserved, NEW.committed, NEW.unavailable, NEW.item_id)
       AND NOT EXISTS (SELECT 1 FROM inventory_posting WHERE level_id = OLD.id) THEN
        SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 4025,
            MESSAGE_TEXT = 'inventory: the balances of a level change by a movement only; use inventory.stock';
    END IF;
END
--;
CREATE TRIGGER inventory_begin BEFORE INSERT ON inventory_level FOR EACH ROW
    SET NEW.available = 0, NEW.reserved = 0, NEW.committed = 0, NEW.unavailable = 0
--;
CREATE TRIGGER inventory_no_delete_movement BEFORE DELETE ON inventory_movement FOR EACH ROW BEGIN
    IF NOT EXISTS (SELECT 1 FROM inventory_posting WHERE level_id = -1) THEN
        SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 4025, MESSAGE_TEXT = 'inventory: movements are never deleted';
    END IF;
END
--;
CREATE TRIGGER inventory_no_update_movement BEFORE UPDATE ON inventory_movement FOR EACH ROW BEGIN
    IF (OLD.id, OLD.entry_id, OLD.level_id, OLD.source, OLD.target, OLD.quantity)
       <> (NEW.id, NEW.entry_id, NEW.level_id, NEW.source, NEW.target, NEW.quantity)
       AND NOT EXISTS (SELECT 1 FROM inventory_posting WHERE level_id = -1) THEN
        SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 4025, MESSAGE_TEXT = 'inventory: movements are never changed';
    END IF;
END
--;
CREATE TRIGGER inventory_no_delete_entry BEFORE DELETE ON inventory_entry FOR EACH ROW BEGIN
    IF NOT EXISTS (SELECT 1 FROM inventory_posting WHERE level_id = -1) THEN
        SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 4025, MESSAGE_TEXT = 'inventory: entries are never deleted';
    END IF;
END
--;
CREATE TRIGGER inventory_no_update_entry BEFORE UPDATE ON inventory_entry FOR EACH ROW BEGIN
    IF ((OLD.id, OLD.cause, OLD.kind, OLD.fingerprint, OLD.actor, OLD.created_at)
        <> (NEW.id, NEW.cause, NEW.kind, NEW.fingerprint, NEW.actor, NEW.created_at)
        OR NOT OLD.of_id <=> NEW.of_id OR OLD.answer IS NOT NULL AND NOT OLD.answer <=> NEW.answer)
       AND NOT EXISTS (SELECT 1 FROM inventory_posting WHERE level_id = -1) THEN
        SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 4025, MESSAGE_TEXT = 'inventory: entries are never changed';
    END IF;
END
--;
CREATE INDEX inventory_reservation_due ON inventory_reservation (state, expires_at)
--;
CREATE INDEX inventory_reservation_ref ON inventory_reservation (reference)
--;
-- Names differ by case, accents and trailing spaces, as elsewhere.
ALTER TABLE inventory_entry MODIFY cause varchar(200) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL
--;
ALTER TABLE inventory_item MODIFY sku varchar(200) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL
--;
ALTER TABLE inventory_location MODIFY code varchar(64) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL
