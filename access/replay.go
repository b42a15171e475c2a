package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/store"
)

// Signatures remembers the signatures of mutations, so that each is used once.
type Signatures interface {
	// Use records the use of a signature. The error is ErrUsed when a request with
	// it was recorded before, by any replica. With every other error it is unknown
	// whether the signature was used, so the request must be refused. Several
	// goroutines may call it.
	Use(ctx context.Context, p Proof) error
}

// Errors of Signatures.
var (
	// ErrUsed: the signature was used before.
	ErrUsed = errors.New("the signature was used before")
	// ErrFull: there are as many signatures as may be remembered.
	ErrFull = errors.New("too many signatures are remembered")
	// ErrClock: the clocks of this process and of the database differ too much.
	ErrClock = errors.New("the clocks of the service and of its database differ")
)

// Migrations returns the SQL of the side tables in the database of a KeyStore. Each
// step runs once; add only to the end.
func Migrations() []string { return []string{signatureTable, bucketTable} }

const signatureTable = `
create table used_signature (
	signature bytea primary key,
	valid_until timestamptz not null
);
create index used_signature_valid_until on used_signature (valid_until);`

const (
	// signatureMargin is how long a signature is remembered after its end. Together with
	// maxDrift it covers the clocks of all replicas: none accepts a signature that the
	// database has forgotten.
	signatureMargin = 15 * time.Minute
	// maxDrift is how far the clock of a replica may be from the database's.
	maxDrift = 10 * time.Minute

	useTimeout      = 3 * time.Second
	forgetPeriod    = time.Minute
	forgetBatch     = 10_000
	maxRemembered   = 2_000_000 // some 300 MB
	useSignatureSQL = `insert into used_signature (signature, valid_until) values ($1, $2)
		on conflict (signature) do nothing returning now()`
	forgetSQL = `delete from used_signature where signature in (select signature from used_signature
		where valid_until < now() - $1::interval limit $2)`
	countSQL = `select count(*) from (select 1 from used_signature limit $1) as rows_up_to_limit`
)

// UsedSignatures implements Signatures by a table of the platform database, which all
// replicas share. While the database does not answer, Use returns its error: the region
// refuses mutations then, rather than execute one twice.
//
// The table is bounded: it forgets signatures that no replica accepts any more, and
// takes none over its limit.
type UsedSignatures struct {
	store *store.Store
	limit int64
	now   func() time.Time

	mu         sync.Mutex
	remembered int64 // rows at the last count, and those that this process has added since
}

var _ Signatures = (*UsedSignatures)(nil)

// NewUsedSignatures returns the signatures in the database of s, which was opened with
// Migrations. Run must run.
func NewUsedSignatures(s *store.Store) *UsedSignatures {
	return &UsedSignatures{store: s, limit: maxRemembered, now: time.Now}
}

// Use implements Signatures.
func (u *UsedSignatures) Use(ctx context.Context, p Proof) error {
	u.mu.Lock()
	full := u.remembered >= u.limit
	u.mu.Unlock()
	if full {
		return ErrFull
	}
	ctx, cancel := context.WithTimeout(ctx, useTimeout)
	defer cancel()
	var at time.Time
	err := u.store.Tx(ctx, func(tx *store.Tx) error {
		return tx.QueryRow(ctx, useSignatureSQL, p.Signature[:], p.ValidUntil).Scan(&at)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ErrUsed
	case err != nil:
		return fmt.Errorf("recording a signature: %w", err)
	}
	u.mu.Lock()
	u.remembered++
	u.mu.Unlock()
	if drift := at.Sub(u.now()).Abs(); drift > maxDrift {
		return fmt.Errorf("%w by %s, and may by %s", ErrClock, drift.Round(time.Second), maxDrift)
	}
	return nil
}

// Run forgets signatures that are not valid any more, until ctx ends. It returns the
// cause of ctx's end. It counts and logs rounds that fail; the next round tries again.
func (u *UsedSignatures) Run(ctx context.Context, failures *Failures) error {
	tick := time.NewTicker(forgetPeriod)
	defer tick.Stop()
	for {
		failures.record(ctx, forgetSignatures, u.forget(ctx))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// forget removes signatures that no replica accepts any more, and counts the others.
func (u *UsedSignatures) forget(ctx context.Context) error {
	for {
		var removed int64
		err := u.store.Tx(ctx, func(tx *store.Tx) error {
			tag, err := tx.Exec(ctx, forgetSQL, signatureMargin, forgetBatch)
			removed = tag.RowsAffected()
			return err
		})
		if err != nil {
			return fmt.Errorf("forgetting signatures: %w", err)
		}
		if removed < forgetBatch {
			break
		}
	}
	var n int64
	err := u.store.Read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, countSQL, u.limit).Scan(&n)
	})
	if err != nil {
		return fmt.Errorf("counting signatures: %w", err)
	}
	u.mu.Lock()
	u.remembered = n
	u.mu.Unlock()
	return nil
}

// isMutation reports whether a request may change something.
func isMutation(method string) bool {
	return method != http.MethodGet && method != http.MethodHead && method != http.MethodOptions
}

// useOnce refuses a mutation whose signature was used before, or cannot be recorded.
func useOnce(ctx context.Context, signatures Signatures, method string, p Proof) error {
	if signatures == nil || !isMutation(method) || p == (Proof{}) {
		return nil
	}
	err := signatures.Use(ctx, p)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrUsed):
		return refuse(SignatureUsed,
			"a request with this signature was received before, and each signature is good for one change; sign "+
				"again (two equal requests in one second have one signature, unless a signed header differs)")
	}
	return refuse(SignaturesNotReady,
		"the region cannot record that this signature is used, so it accepts no changes now; try again").Because(err)
}
