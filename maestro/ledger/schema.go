package ledger

// LedgerSchema has one row for each bundle: the wanted generation, the generation that the agent's
// statuses have acknowledged, and the course of the delivery. The transaction that changes a bundle
// writes its row (I5), so the undelivered works can be read at any moment, after any crash. When an
// agent has confirmed a deletion, the row stays as a tombstone: an old message may make the agent apply
// the work again, and the server must then find that the work was deleted.
const LedgerSchema = `
create table ledger (
	id           text primary key,
	consumer     text not null,
	source       text not null,
	wanted       bigint not null,
	deleting     boolean not null default false,
	acknowledged bigint not null default 0,
	status_hash  text not null default '', -- of the status that is stored; '' while there is none
	sequence     text not null default '', -- of the last status taken, also of one that changed nothing
	accepted_at  timestamptz not null default now(),
	sent_at      timestamptz,
	received_at  timestamptz,
	applied_at   timestamptz,
	attempts     int not null default 0,
	last_error   text not null default '',
	gone_at      timestamptz
);
create index ledger_pending on ledger (consumer) where gone_at is null and (deleting or wanted > acknowledged);
create index ledger_consumer on ledger (consumer);
create index ledger_source on ledger (source, id);
create index ledger_gone on ledger (gone_at) where gone_at is not null;
alter table ledger set (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- What agents hold and we do not know, as of their last resync.
create table unknown_work (
	consumer   text not null,
	id         text not null,
	generation bigint not null,
	first_seen timestamptz not null default now(),
	primary key (consumer, id)
);
`

// DigestSchema has the agents that compare by digests (021), and the time of the last one.
const DigestSchema = `
create table agent_digest (
	consumer    text primary key,
	answered_at timestamptz not null
);
alter table unknown_work add column status_hash text not null default '';
`

// ForceSchema marks tombstones of forced deletions (022), which stay until the agent has
// confirmed.
const ForceSchema = `
alter table ledger add column first_sent_at timestamptz, add column unconfirmed boolean not null default false;
-- The source for which an operator has a work adopted, once its agent has said
-- what it holds.
alter table unknown_work add column adopt_source text not null default '', add column adopt_by text not null default '', add column adopt_reason text not null default '';
`

// AcknowledgedSchema adds the time of the last status. A list of works that the agent sent
// before that time must not revoke the acknowledgement of the status.
const AcknowledgedSchema = `alter table ledger add column acknowledged_at timestamptz;`

// LifeSchema adds to an unknown work the life of the database in which its agent received it.
const LifeSchema = `alter table unknown_work add column life text not null default ''`

// ComparedSchema has the consumers whose agents' works were all compared: the time, and the
// life of the database.
const ComparedSchema = `
create table agent_compared (
	consumer text primary key,
	life     text not null,
	at       timestamptz not null default now()
);
`

// VersionSchema adds the difference between the generation and the source's version.
const VersionSchema = `alter table ledger add column version_offset bigint not null default 0`
