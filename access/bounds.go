package access

import (
	"context"
	"fmt"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// Bounds of one account. They bound the memory of its policies and the time of a decision.
const (
	maxPolicies    = 1000
	maxGroups      = 500
	maxMembers     = 1000 // of a group
	maxAttachments = 5000
	maxAdmins      = 100

	// maxAttachedStatements bounds the statements of all attachments: those of a policy count once for
	// each of its attachments.
	maxAttachedStatements = 20_000
	// maxReach bounds the statements that reach one principal, by attachments to its ARN and to the groups
	// that have the ARN as a member. A session has those of its role besides.
	maxReach = 500
)

// plurals names the documents that an account has a bounded number of.
var plurals = map[store.Kind]string{KindAdmin: "administrators", KindPolicy: "policies", KindGroup: "groups",
	KindAttachment: "attachments", KindLink: "links"}

// checkCount refuses when an account has more documents of a kind than a bound. It counts inside the
// transaction that has created one and holds the account, so that concurrent writes cannot exceed it.
func checkCount(ctx context.Context, tx *store.Tx, account cluster.Account, kind store.Kind, bound int) error {
	var n int
	if err := tx.QueryRow(ctx, `select count(*) from document where kind = $1 and scope = $2 and removed_at is null`,
		string(kind), account).Scan(&n); err != nil {
		return fmt.Errorf("counting the %s of account %s: %w", plurals[kind], account, err)
	}
	if n > bound {
		return fmt.Errorf("an account has at most %d %s: %w", bound, plurals[kind], ErrTooMany)
	}
	return nil
}

// reachSQL sums the statements of an account's attachments, in total and for the principal that most of
// them reach. A managed policy has one statement. A policy without a count was stored before there were
// counts; it may have $2.
const reachSQL = `
with attachment as (
	select a.spec->>'targetType' as kind, a.spec->>'targetId' as target,
		case when p.id is null then 1 else coalesce((p.spec->>'statements')::int, $2::int) end as n
	from document a left join document p
		on p.kind = 'Policy' and p.id = a.spec->>'policyId' and p.scope = a.scope and p.removed_at is null
	where a.kind = 'Attachment' and a.scope = $1 and a.removed_at is null
), grouped as (
	select target, sum(n) as n from attachment where kind = 'group' group by target
), reach as (
	select target as principal, n from attachment where kind = 'user'
	union all
	select m.principal, grouped.n from grouped
		join document g on g.kind = 'Group' and g.id = grouped.target and g.scope = $1 and g.removed_at is null
		cross join jsonb_array_elements_text(g.spec->'members') as m (principal)
)
select coalesce((select sum(n) from attachment), 0)::bigint,
	coalesce((select max(n) from (select sum(n) as n from reach group by principal) as each), 0)::bigint`

// checkReach refuses when too many statements are attached in an account, or reach one of its
// principals. It runs inside the transaction that has made the change and holds the account.
func checkReach(ctx context.Context, tx *store.Tx, account cluster.Account) error {
	var attached, reach int
	err := tx.QueryRow(ctx, reachSQL, account, policy.MaxStatements).Scan(&attached, &reach)
	switch {
	case err != nil:
		return fmt.Errorf("counting the attached statements of account %s: %w", account, err)
	case attached > maxAttachedStatements:
		return fmt.Errorf("at most %d statements of policies are attached in an account, each once for each attachment: %w",
			maxAttachedStatements, ErrTooMany)
	case reach > maxReach:
		return fmt.Errorf("at most %d statements of policies reach one principal: %w", maxReach, ErrTooMany)
	}
	return nil
}
