package store

// insertedRows is the step of the schema that replaces the trigger for each inserted document by one for each
// statement, which writes the rows of the feed and of the tally for all documents that the statement inserts. A
// group of creations then runs two statements in the trigger, and not two for each document; one creation alone costs
// the same.
const insertedRows = `
do $do$ begin
	-- The schema's name is written into it, because pg_restore sets no search path.
	execute format($f$create function document_inserted() returns trigger language plpgsql as $$ begin
		insert into %1$I.feed select i.xid, i.kind, i.id, i.facets from inserted i;
		insert into %1$I.tally select i.kind, 1 from inserted i where i.removed_at is null;
		return null;
	end $$$f$, current_schema());
end $do$;
lock table document in access exclusive mode; -- between the two triggers no other process may write
drop trigger document_made on document;
create trigger document_inserted after insert on document referencing new table as inserted
	for each statement execute function document_inserted();
create trigger document_deleted after delete on document for each row execute function document_feed()`
