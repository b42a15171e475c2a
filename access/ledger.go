package access

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"atoll.dev/store"
)

// A crash of the database may empty the table: its buckets are full again then.
const bucketTable = `
create unlogged table rate_bucket (
	key text primary key,
	tokens double precision not null,
	rate double precision not null,
	burst double precision not null,
	at timestamptz not null
);`

// settleSQL takes spent tokens from the shared buckets. A new bucket is full before. The
// debt of a bucket is at most its size.
const settleSQL = `with spending as (
		select * from unnest($1::text[], $2::float8[], $3::float8[], $4::float8[]) as s (key, spent, rate, burst)),
	settled as (
		insert into rate_bucket as b (key, tokens, rate, burst, at)
		select key, burst - spent, rate, burst, now() from spending order by key
		on conflict (key) do update set
			tokens = greatest(-excluded.burst, least(excluded.burst,
				b.tokens + excluded.rate * greatest(0, extract(epoch from now() - b.at)))
				- (excluded.burst - excluded.tokens)),
			rate = excluded.rate, burst = excluded.burst, at = greatest(now(), b.at)
		returning key, tokens)
	select array_agg(key order by key), array_agg(tokens order by key) from settled`

// settleTimeout bounds one settlement; the local buckets go on meanwhile.
const settleTimeout = 2 * time.Second

// SharedBuckets implements Ledger by a table of the platform database.
type SharedBuckets struct{ store *store.Store }

var _ Ledger = SharedBuckets{}

// NewSharedBuckets returns the buckets in the database of s, which was opened with
// Migrations.
func NewSharedBuckets(s *store.Store) SharedBuckets { return SharedBuckets{s} }

// Settle implements Ledger.
func (s SharedBuckets) Settle(ctx context.Context, spent []Spending) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	spent = slices.SortedFunc(slices.Values(spent), func(a, b Spending) int { return cmp.Compare(a.Key, b.Key) })
	var keys []string
	var taken, rates, bursts []float64
	for _, of := range spent {
		keys, taken = append(keys, of.Key), append(taken, of.Spent)
		rates, bursts = append(rates, of.Rate.PerSecond), append(bursts, of.Rate.Burst)
	}
	var settled []string
	var tokens []float64
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		return tx.QueryRow(ctx, settleSQL, keys, taken, rates, bursts).Scan(&settled, &tokens)
	})
	if err != nil {
		return nil, fmt.Errorf("settling rates: %w", err)
	}
	left := make(map[string]float64, len(settled))
	for i, key := range settled {
		left[key] = tokens[i]
	}
	return left, nil
}
