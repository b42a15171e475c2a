package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/maestro/bundle"
	"atoll.dev/store"
)

// Holdings has the contacts of an agent and the number of its unknown works.
type Holdings struct {
	Unknown    int // works without a bundle
	ComparedAt *time.Time
	SeenAt     *time.Time
}

// withoutSync makes a commit not wait for the disk. A crash of the database may lose the last few hundred
// milliseconds of such records; the next digest or list of each agent writes them again.
const withoutSync = `with o as materialized (select set_config('synchronous_commit', 'off', true)) `

// comparedSQL records that all works of an agent were compared in this life of the database. It writes nothing when
// that is recorded. Its commit waits for the disk, because nothing else asks for this record again.
const comparedSQL = `insert into agent_compared as a (consumer, life) select $1, $2
	where not exists (select from agent_compared where consumer = $1 and life = $2)
	on conflict (consumer) do update set life = excluded.life, at = now() where a.life <> excluded.life`

// digestUseSQL records that an agent compares by digests.
const digestUseSQL = `insert into agent_digest as d (consumer, answered_at) select $1, now() from o
	on conflict (consumer) do update set answered_at = now()`

// MarkCompared records that all works of an agent were compared in this life of the
// database: those without a bundle are recorded as unknown works.
func (l *Ledger) MarkCompared(ctx context.Context, consumer work.Consumer, life string) error {
	return l.recordComparison(ctx, comparedSQL, consumer, life)
}

// agreementSQL is digestUseSQL and comparedSQL. Its commit waits for the disk only if comparedSQL writes.
const agreementSQL = `with o as materialized (select set_config('synchronous_commit', case
		when exists (select from agent_compared where consumer = $1 and life = $2) then 'off'
		else current_setting('synchronous_commit') end, true)),
	d as (` + digestUseSQL + `) ` + comparedSQL

// RecordAgreement is RecordDigestUse and MarkCompared in one transaction.
func (l *Ledger) RecordAgreement(ctx context.Context, consumer work.Consumer, life string) error {
	return l.recordComparison(ctx, agreementSQL, consumer, life)
}

// HoldingsOf reads the holdings of the named consumers, by name.
func (l *Ledger) HoldingsOf(ctx context.Context, life string, names ...work.Consumer) (map[work.Consumer]Holdings,
	error) {
	found := map[work.Consumer]Holdings{}
	err := l.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(
			ctx,
			`select n, (select count(*) from unknown_work u where u.consumer = n), (select at from agent_compared a where a.consumer = n and a.life = $2),
			(select seen_at from agent_seen s where s.consumer = n)
			from unnest($1::text[]) n`,
			names,
			life,
		)
		if err != nil {
			return err
		}
		var name work.Consumer
		var h Holdings
		_, err = pgx.ForEachRow(rows, []any{&name, &h.Unknown, &h.ComparedAt, &h.SeenAt}, func() error {
			found[name] = h
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the holdings of agents: %w", err)
	}
	return found, nil
}

// consumersSQL finds each consumer by one look into an index of consumers, instead of reading all works: with a million
// works that took half a second at each connection to the broker.
const consumersSQL = `with recursive c as (
		(select consumer from ledger where gone_at is null order by consumer limit 1)
		union all
		select (select l.consumer from ledger l where l.gone_at is null and l.consumer > c.consumer order by l.consumer limit 1)
		from c where c.consumer is not null)
	select consumer from c where consumer is not null order by 1`

// ConsumersWithBundles lists the consumers that have bundles.
func (l *Ledger) ConsumersWithBundles(ctx context.Context) (names []work.Consumer, err error) {
	err = l.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, consumersSQL)
		if err != nil {
			return err
		}
		names, err = pgx.CollectRows(rows, pgx.RowTo[work.Consumer])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing consumers that have bundles: %w", err)
	}
	return names, nil
}

// StatusHashes reads the status hashes of a consumer's bundles, ordered by id: of all,
// or of those with these ids. latest is the latest sequence of these statuses, "" when
// none has one.
//
// A work that is unacknowledged although its stored status is about the wanted generation has an empty
// hash, which no agent has: an intact agent sends its status again. Servers that share a subscription take
// an agent's events out of order, so a list from before that status may have lowered the acknowledged
// generation after it (LowerAcknowledged).
func (l *Ledger) StatusHashes(ctx context.Context, consumer work.Consumer, ids []work.ID) (hashes []work.StatusHash,
	latest string, err error) {
	err = l.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(
			ctx,
			`select id, case when wanted > acknowledged and exists (
					select from document d where d.kind = $3 and d.id = l.id
						and (d.status->>'resourceversion')::bigint = l.wanted offset 0) then '' else status_hash end, sequence
				from ledger l
				where consumer = $1 and gone_at is null and ($2::text[] is null or id = any($2)) order by id`,
			consumer,
			ids,
			string(bundle.Kind),
		)
		if err != nil {
			return err
		}
		hashes, latest = nil, ""
		var hash work.StatusHash
		var sequence string
		_, err = pgx.ForEachRow(rows, []any{&hash.ID, &hash.Hash, &sequence}, func() error {
			hashes = append(hashes, hash)
			if sequence != "" && bundle.IsNewer(sequence, latest) {
				latest = sequence
			}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("reading the status hashes of %s: %w", consumer, err)
	}
	return hashes, latest, nil
}

// SourceHashes reads the status hashes of those bundles of a source that the list
// names.
func (l *Ledger) SourceHashes(ctx context.Context, source string, list []work.StatusHash) (hashes []work.StatusHash,
	err error) {
	ids := make([]work.ID, len(list))
	for i, h := range list {
		ids[i] = h.ID
	}
	err = l.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(
			ctx,
			`select id, status_hash from ledger where source = $1 and gone_at is null and id = any($2)`,
			source,
			ids,
		)
		if err != nil {
			return err
		}
		hashes, err = pgx.CollectRows(rows, scanHash)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the status hashes of source %s: %w", source, err)
	}
	return hashes, nil
}

func scanHash(row pgx.CollectableRow) (h work.StatusHash, err error) {
	err = row.Scan(&h.ID, &h.Hash)
	if h.Hash == "" {
		h.Hash = bundle.EmptyHash
	}
	return h, err
}

// DigestAgents lists the consumers whose agents compare by digests, with the time of
// the last digest.
func (l *Ledger) DigestAgents(ctx context.Context) (map[work.Consumer]time.Time, error) {
	found := map[work.Consumer]time.Time{}
	err := l.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		clear(found)
		rows, err := c.Query(ctx, `select consumer, now() - answered_at from agent_digest`)
		if err != nil {
			return err
		}
		var name work.Consumer
		var ago time.Duration // the database's clock is not ours
		_, err = pgx.ForEachRow(rows, []any{&name, &ago}, func() error {
			found[name] = time.Now().Add(-ago)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing agents that compare digests: %w", err)
	}
	return found, nil
}

// Unacknowledged selects the works of a consumer whose present generation is not
// acknowledged. It leaves deletions out: they have no status.
func (l *Ledger) Unacknowledged(ctx context.Context, consumer work.Consumer, ids []work.ID) (pending []work.ID,
	err error) {
	err = l.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(
			ctx,
			`select id from ledger where consumer = $1 and id = any($2) and gone_at is null and not deleting and wanted > acknowledged
			order by id`,
			consumer,
			ids,
		)
		if err != nil {
			return err
		}
		pending, err = pgx.CollectRows(rows, pgx.RowTo[work.ID])
		return err
	})
	return pending, err
}

// RecordDigestUse records that an agent compares by digests, and the time of its last comparison.
func (l *Ledger) RecordDigestUse(ctx context.Context, consumer work.Consumer) error {
	return l.recordComparison(ctx, withoutSync+digestUseSQL, consumer)
}

// RecordListUse records that an agent compares by lists, as agents of Open Cluster Management do.
func (l *Ledger) RecordListUse(ctx context.Context, consumer work.Consumer) error {
	return l.recordComparison(ctx, withoutSync+`delete from agent_digest using o where consumer = $1`, consumer)
}

// recordComparison runs a statement about the comparison of one agent, whose first argument is the consumer.
func (l *Ledger) recordComparison(ctx context.Context, sql string, consumer work.Consumer, more ...any) error {
	return l.store.Tx(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(ctx, sql, append([]any{consumer}, more...)...); err != nil {
			return fmt.Errorf("recording how the agent of %s compares: %w", consumer, err)
		}
		return nil
	})
}
