package clm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// PostgreSQL counts what each account uses, by triggers on the documents. So the count belongs to the statement
// that creates, changes or removes a resource, whoever sends it: a creation takes no further round trip, and no front
// and no other process can go around it. Decision 091 has the reasons and what was measured.

// quotaTable creates the table quota, with a row for each account. The row whose account is empty holds the region's
// default limits. Its arrays have an element for each of quotaNames, in that order: used is the account's use, also of
// resources that are being deleted; most is a copy of the limits of the account's document of QuotaKind, null where the
// default counts.
//
// The triggers concern three kinds. A change of a document's status changes neither its generation nor removed_at, so
// that PostgreSQL does not call the function. PostgreSQL calls triggers in the order of their names. The name of the
// quota's trigger sorts before that of the feed's trigger, so PostgreSQL refuses a creation before it writes the feed.
const quotaTable = `
lock table document in share row exclusive mode; -- a process of the release before may be writing
create table quota (
	account text primary key,
	used    bigint[] not null default '{0,0,0,0}',
	most    bigint[] not null default '{null,null,null,null}'
) with (fillfactor = 50);
create function quota_amount(kind text, spec jsonb) returns bigint[] immutable language sql as $$
	select case kind
		when 'Cluster' then array[1, 0, 0, 2]::bigint[]
		when 'NodePool' then array[0, 1, least(greatest(0,
				case when jsonb_typeof(spec #> '{spec,nodePool,replicas}') = 'number'
					then ceil((spec #> '{spec,nodePool,replicas}')::numeric) end,
				case when jsonb_typeof(spec #> '{spec,nodePool,autoScaling,max}') = 'number'
					then ceil((spec #> '{spec,nodePool,autoScaling,max}')::numeric) end,
				case when jsonb_typeof(spec #> '{spec,replicas}') = 'number'
					then ceil((spec #> '{spec,replicas}')::numeric) end), 1000000000)::bigint, 1]::bigint[]
		when 'Credential' then array[0, 0, 0, 1]::bigint[]
		else '{0,0,0,0}'::bigint[]
	end $$;
do $do$ begin
	-- The schema's name is written into the functions: a session that restores a dump has no search path.
	execute format($f$create function document_quota() returns trigger language plpgsql as $$
declare
	before bigint[] := '{0,0,0,0}';
	after  bigint[] := '{0,0,0,0}';
	owner  text;
	total  bigint[];
	most   bigint[];
	usual  bigint[];
begin
	if tg_op <> 'INSERT' and old.removed_at is null then
		before := %1$I.quota_amount(old.kind, old.spec);
		owner := old.spec #>> '{tenancy,account}';
	end if;
	if tg_op <> 'DELETE' and new.removed_at is null then
		if new.kind = 'Cluster' then
			after := '{1,0,0,2}'; -- as quota_amount, which takes longer
		else
			after := %1$I.quota_amount(new.kind, new.spec);
		end if;
		owner := new.spec #>> '{tenancy,account}';
	end if;
	if owner is null or before = after then
		return null;
	end if;
	update %1$I.quota q set used = array[q.used[1]+after[1]-before[1], q.used[2]+after[2]-before[2],
			q.used[3]+after[3]-before[3], q.used[4]+after[4]-before[4]]
		from %1$I.quota d where q.account = owner and d.account = ''
		returning q.used, q.most, d.most into total, most, usual;
	if not found then
		insert into %1$I.quota as q (account, used) values (owner, array[after[1]-before[1], after[2]-before[2],
				after[3]-before[3], after[4]-before[4]])
			on conflict (account) do update set used = array[q.used[1]+after[1]-before[1], q.used[2]+after[2]-before[2],
				q.used[3]+after[3]-before[3], q.used[4]+after[4]-before[4]]
			returning q.used, q.most, (select d.most from %1$I.quota d where d.account = '') into total, most, usual;
	end if;
	for i in 1..4 loop
		if after[i] > before[i] and total[i] > coalesce(most[i], usual[i]) then
			raise exception using errcode = 'QUOTA', message = 'a quota is used up', detail = json_build_object(
				'account', owner, 'index', i - 1, 'limit', coalesce(most[i], usual[i]),
				'used', total[i] - after[i] + before[i], 'asked', after[i] - before[i])::text;
		end if;
	end loop;
	return null;
end $$$f$, current_schema());
end $do$;
create trigger document_charged after insert on document for each row
	when (new.kind in ('Cluster', 'NodePool', 'Credential')) execute function document_quota();
create trigger document_discharged after delete on document for each row
	when (old.kind in ('Cluster', 'NodePool', 'Credential') and old.removed_at is null) execute function document_quota();
create trigger document_charged_again after update of generation, removed_at on document for each row
	when (new.kind in ('Cluster', 'NodePool', 'Credential') and ((old.removed_at is null) <> (new.removed_at is null)
		or new.kind = 'NodePool' and old.generation <> new.generation))
	execute function document_quota();
insert into quota (account) values ('');
insert into quota (account, used) select account, used from (` + countedUse + `) counted`

// countedUse counts by account what the stored documents use.
const countedUse = `select spec #>> '{tenancy,account}' as account,
		array[sum(a[1]), sum(a[2]), sum(a[3]), sum(a[4])]::bigint[] as used
	from document, quota_amount(kind, spec) as a
	where kind in ('Cluster', 'NodePool', 'Credential') and removed_at is null and spec #>> '{tenancy,account}' is not null
	group by 1`

// quotaExceeded returns the answer to an error of the trigger, nil for another error.
func quotaExceeded(err error) *rest.Error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || e.Code != "QUOTA" {
		return nil
	}
	var at struct {
		Account            cluster.Account
		Index              int
		Limit, Used, Asked int64
	}
	if err := json.Unmarshal([]byte(e.Detail), &at); err != nil || at.Index < 0 || at.Index >= len(quotaNames) {
		return nil
	}
	name := quotaNames[at.Index]
	refusal := rest.Errorf(http.StatusForbidden, codeQuota, "the quota %s of account %s is %d: %d are used, and the "+
		"request needs %d more; delete some and wait until they are gone, or ask an operator for a higher quota "+
		"(see: atoll quota list)", name, at.Account, at.Limit, at.Used, at.Asked)
	refusal.Quota = &rest.QuotaExcess{Name: name, Limit: at.Limit, Used: at.Used, Asked: at.Asked}
	return refusal.Because(err)
}

// setDefaultQuotas stores the default limits of Options, if it has any. They hold for all servers of the database: the
// server that started last decides. Equal limits are not written, so that a server starts while the disk is full.
func (s *Server) setDefaultQuotas(ctx context.Context) error {
	if s.opts.Quotas == nil {
		return nil
	}
	_, _, usual, err := s.readQuotas(ctx, "")
	if err != nil || slices.EqualFunc(usual, limitsOf(s.opts.Quotas), sameLimit) {
		return err
	}
	return s.store.Tx(ctx, func(tx *store.Tx) error { return setLimits(ctx, tx, "", s.opts.Quotas) })
}

// setLimits stores the limits of an account, or the default limits for the account "".
func setLimits(ctx context.Context, tx *store.Tx, account cluster.Account, limits map[string]int64) error {
	_, err := tx.Exec(ctx, `insert into quota (account, most) values ($1, $2)
		on conflict (account) do update set most = excluded.most`, account, limitsOf(limits))
	if err != nil {
		return fmt.Errorf("storing the quotas of account %q: %w", account, err)
	}
	return nil
}

// sameLimit compares limits; nil is no limit.
func sameLimit(a, b *int64) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }

// limitsOf returns limits as the column most has them.
func limitsOf(limits map[string]int64) []*int64 {
	most := make([]*int64, len(quotaNames))
	for i, name := range quotaNames {
		if n, ok := limits[name]; ok {
			most[i] = &n
		}
	}
	return most
}

// checkQuotasEvery is the pause between two checks of the counted use by one server.
const checkQuotasEvery = time.Hour

// checkQuotas runs correctQuotas when checkQuotasEvery has passed since the last time.
func (s *Server) checkQuotas(ctx context.Context, now time.Time) error {
	if now.Sub(s.quotasChecked) < checkQuotasEvery {
		return nil
	}
	s.quotasChecked = now
	return s.correctQuotas(ctx)
}

// correctQuotas counts the use of all accounts, and corrects rows that differ. Each transaction commits a document with
// its count, so one query never sees one without the other: rows differ only after a restore without triggers, or after
// a change by hand. An account that cannot be counted, for example because its row stays locked, hinders no other: the
// error names the first such account, and the next check counts it again.
func (s *Server) correctQuotas(ctx context.Context) error {
	wrong, err := s.wrongQuotas(ctx)
	if err != nil {
		return err
	}
	var first error
	failures := 0
	for _, account := range wrong {
		err := s.countAgain(ctx, account)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			failures++
			first = cmp.Or(first, err)
		default:
			s.log.Warn("the counted use of an account's quotas was wrong; the server has corrected it", "account", account)
		}
	}
	if first != nil {
		return fmt.Errorf("%d of %d wrong counts were not corrected; the first: %w", failures, len(wrong), first)
	}
	return nil
}

// wrongQuotas returns the accounts whose row differs from what their documents use.
func (s *Server) wrongQuotas(ctx context.Context) (accounts []cluster.Account, err error) {
	err = s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, `select coalesce(q.account, counted.account)
			from (select * from quota where account <> '') q
			full join (`+countedUse+`) counted on counted.account = q.account
			where coalesce(q.used, '{0,0,0,0}') <> coalesce(counted.used, '{0,0,0,0}') order by 1`)
		if err != nil {
			return err
		}
		accounts, err = pgx.CollectRows(rows, pgx.RowTo[cluster.Account])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("comparing the use of quotas: %w", err)
	}
	return accounts, nil
}

// countAgain counts an account's use while it holds the account's row: a transaction that has changed the use holds
// the row until its commit, and one that comes later waits and adds to the corrected use.
func (s *Server) countAgain(ctx context.Context, account cluster.Account) error {
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(ctx, `insert into quota (account) values ($1) on conflict do nothing`, account); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `select from quota where account = $1 for update`, account); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `update quota set used = coalesce((select used from (`+countedUse+`) counted
			where counted.account = $1), '{0,0,0,0}') where account = $1`, account)
		return err
	})
	if err != nil {
		return fmt.Errorf("counting the use of quotas of account %s: %w", account, err)
	}
	return nil
}

// readQuotas returns the row of an account, without an error if there is none, and the default limits.
func (s *Server) readQuotas(ctx context.Context, account cluster.Account) (used []int64, most,
	usual []*int64, err error) {
	used, most, usual = make([]int64, len(quotaNames)), make([]*int64, len(quotaNames)), make([]*int64, len(quotaNames))
	err = s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, `select account, used, most from quota where account in ('', $1)`, account)
		if err != nil {
			return err
		}
		var of string
		var n []int64
		var limits []*int64
		_, err = pgx.ForEachRow(rows, []any{&of, &n, &limits}, func() error {
			if of == "" {
				usual = slices.Clone(limits)
			} else {
				used, most = slices.Clone(n), slices.Clone(limits)
			}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("reading the quotas of account %s: %w", account, err)
	}
	return used, most, usual, nil
}
