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

// deductSQL takes spent tokens from the shared buckets. A new bucket is full before that. The debt of a bucket is
// at most its size.
const deductSQL = `with spending as (
		select * from unnest($1::text[], $2::float8[], $3::float8[], $4::float8[]) as s (key, spent, rate, burst)),
	deducted as (
		insert into rate_bucket as b (key, tokens, rate, burst, at)
		select key, burst - spent, rate, burst, now() from spending order by key
		on conflict (key) do update set
			tokens = greatest(-excluded.burst, least(excluded.burst,
				b.tokens + excluded.rate * greatest(0, extract(epoch from now() - b.at)))
				- (excluded.burst - excluded.tokens)),
			rate = excluded.rate, burst = excluded.burst, at = greatest(now(), b.at)
		returning key, tokens)
	select array_agg(key order by key), array_agg(tokens order by key) from deducted`

// deductTimeout bounds one call of Deduct. The local buckets limit requests meanwhile.
const deductTimeout = 2 * time.Second

// SharedBuckets implements Ledger by a table of the platform database.
type SharedBuckets struct{ store *store.Store }

var _ Ledger = SharedBuckets{}

// NewSharedBuckets returns the buckets in the database of s, which was opened with
// Migrations.
func NewSharedBuckets(s *store.Store) SharedBuckets { return SharedBuckets{s} }

// Deduct implements Ledger.
func (s SharedBuckets) Deduct(ctx context.Context, spent []Spending) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, deductTimeout)
	defer cancel()
	spent = slices.SortedFunc(slices.Values(spent), func(a, b Spending) int { return cmp.Compare(a.Key, b.Key) })
	var keys []string
	var taken, rates, bursts []float64
	for _, spending := range spent {
		keys, taken = append(keys, spending.Key), append(taken, spending.Spent)
		rates, bursts = append(rates, spending.Rate.PerSecond), append(bursts, spending.Rate.Burst)
	}
	var found []string
	var tokens []float64
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		return tx.QueryRow(ctx, deductSQL, keys, taken, rates, bursts).Scan(&found, &tokens)
	})
	if err != nil {
		return nil, fmt.Errorf("deducting tokens from the shared buckets: %w", err)
	}
	left := make(map[string]float64, len(found))
	for i, key := range found {
		left[key] = tokens[i]
	}
	return left, nil
}
