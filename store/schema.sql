-- One row: which life of the database this is. See incarnation.go.
create table store_meta (
	one             boolean primary key default true check (one),
	incarnation     text not null,
	identity        text not null,   -- server, timeline and database in which the incarnation began
	filenode        oid not null,    -- of the table document then
	stamp           bigint not null, -- low 32 bits of the transaction that wrote this row: a copy of the row has another xmin
	horizon         xid8 not null default '0', -- tombstones of transactions up to this one may have been compacted away
	history_horizon xid8 not null default '0'
);

create table document (
	kind        text not null,
	id          text not null,
	scope       text not null,
	name        text not null,
	version     bigint not null,
	generation  bigint not null,
	spec        jsonb not null,
	status      jsonb not null,
	wire        bytea not null,
	created_at  timestamptz not null,
	updated_at  timestamptz not null,
	deleted_at  timestamptz,
	removed_at  timestamptz, -- a tombstone
	observed_at timestamptz, -- no content: changes it and nothing else
	xid         xid8 not null default pg_current_xact_id(), -- the transaction that wrote this version
	token       bigint not null, -- random, one for each transaction: tells our write from another's when a commit's answer is lost
	primary key (kind, id)
);
-- The feed. Kind and id are in it so that a backlog written by one transaction can be read in chunks.
create index document_feed on document (xid, kind, id);
create unique index document_name on document (kind, scope, name) where removed_at is null and name <> '';
create index document_removed on document (removed_at) where removed_at is not null;
alter table document set (fillfactor = 85, toast_tuple_target = 4096, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05,
	autovacuum_vacuum_cost_delay = 0);

-- What each change was, and who made it. Insert only.
create table history (
	xid        xid8 not null default pg_current_xact_id(),
	seq        bigint generated always as identity,
	at         timestamptz not null,
	action     text not null,
	kind       text not null,
	id         text not null,
	scope      text not null,
	version    bigint not null,
	generation bigint not null,
	principal  text not null,
	account    text not null,
	request_id text not null,
	spec       jsonb, -- null: not changed by this change
	status     jsonb, -- null: not changed by this change
	note       jsonb, -- what Tx.Record was given
	token      bigint not null,
	primary key (xid, seq)
);
create index history_document on history (kind, id, version);

-- Durable cursors of named followers.
create table follower (
	name       text primary key,
	cursor     text not null,
	updated_at timestamptz not null default now()
);
