package access

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
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
	// ErrAccountFull: as many signatures of the account are remembered as may be.
	ErrAccountFull = errors.New("too many signatures of the account are remembered")
	// ErrUsed: the signature was used before.
	ErrUsed = errors.New("the signature was used before")
	// ErrFull: there are as many signatures as may be remembered.
	ErrFull = errors.New("too many signatures are remembered")
	// ErrClock: the clocks of this process and of the database differ too much.
	ErrClock = errors.New("the clocks of the service and of its database differ")
)

// Migrations returns the SQL of the side tables in the database of a KeyStore. Each
// step runs once; add only to the end.
func Migrations() []string {
	return []string{signatureTable, bucketTable, signatureAccount, keyUseTable}
}

const signatureTable = `
create table used_signature (
	signature bytea primary key,
	valid_until timestamptz not null
);
create index used_signature_valid_until on used_signature (valid_until);`

const signatureAccount = `alter table used_signature add column account text not null default '';`

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
	accountShare    = 10        // an account may have a tenth of them
	accountRetry    = time.Minute
	useSignatureSQL = `insert into used_signature (signature, valid_until, account) values ($1, $2, $3)
		on conflict (signature) do nothing returning now()`
	forgetSQL = `delete from used_signature where signature in (select signature from used_signature
		where valid_until < now() - $1::interval limit $2)`
	countSQL = `select account, count(*) from (select account from used_signature limit $1) as rows_up_to_limit
		group by account`
)

// UsedSignatures implements Signatures by a table of the platform database, which all
// replicas share. While the database does not answer, Use returns its error: the region
// refuses mutations then, rather than execute one twice.
//
// The table is bounded: it forgets signatures that no replica accepts any more, and
// takes none over its limit, nor over the share of an account.
type UsedSignatures struct {
	store *store.Store
	limit int64
	now   func() time.Time

	mu         sync.Mutex
	remembered int64                     // rows at the last count, plus the rows that this process has added since
	of         map[cluster.Account]int64 // the same of each account
}

var _ Signatures = (*UsedSignatures)(nil)

// NewUsedSignatures returns the signatures in the database of s, which was opened with
// Migrations. Run must run.
func NewUsedSignatures(s *store.Store) *UsedSignatures {
	return &UsedSignatures{store: s, limit: maxRemembered, now: time.Now, of: map[cluster.Account]int64{}}
}

// Use implements Signatures.
func (u *UsedSignatures) Use(ctx context.Context, p Proof) error {
	u.mu.Lock()
	full, accountFull := u.remembered >= u.limit, u.of[p.Account] >= u.limit/accountShare
	u.mu.Unlock()
	switch {
	case full:
		return ErrFull
	case accountFull:
		return ErrAccountFull
	}
	ctx, cancel := context.WithTimeout(ctx, useTimeout)
	defer cancel()
	var at time.Time
	err := u.store.Tx(ctx, func(tx *store.Tx) error {
		return tx.QueryRow(ctx, useSignatureSQL, p.Signature[:], p.ValidUntil, string(p.Account)).Scan(&at)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ErrUsed
	case err != nil:
		return fmt.Errorf("recording a signature: %w", err)
	}
	u.mu.Lock()
	u.remembered++
	u.of[p.Account]++
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
	var total int64
	var of map[cluster.Account]int64
	err := u.store.Read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		total, of = 0, map[cluster.Account]int64{} // a read may run again
		rows, err := conn.Query(ctx, countSQL, u.limit)
		if err != nil {
			return err
		}
		var account string
		var n int64
		_, err = pgx.ForEachRow(rows, []any{&account, &n}, func() error {
			total += n
			of[cluster.Account(account)] = n
			return nil
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("counting signatures: %w", err)
	}
	u.mu.Lock()
	u.remembered, u.of = total, of
	u.mu.Unlock()
	return nil
}

// isMutation reports whether a request may change something.
func isMutation(method string) bool {
	return method != http.MethodGet && method != http.MethodHead && method != http.MethodOptions
}

type proofKey struct{}

// drawProof returns a proof for a mutation that has none, such as one through the gateway. Its record
// shows that the database answers, so that this process learns of changed accounts; it may be forgotten
// at once.
func drawProof(account cluster.Account) (Proof, error) {
	p := Proof{Account: account, ValidUntil: time.Now().Add(-signatureMargin)}
	if _, err := rand.Read(p.Signature[:]); err != nil {
		return Proof{}, fmt.Errorf("drawing a proof: %w", err)
	}
	return p, nil
}

// useOnce refuses a mutation whose signature was used before, or cannot be recorded. The request has
// its Proof in its context.
func (rt *Router) useOnce(w http.ResponseWriter, r *http.Request, caller Identity, class Class) error {
	if rt.signatures == nil || !isMutation(r.Method) {
		return nil
	}
	p, _ := r.Context().Value(proofKey{}).(Proof)
	isSigned := p != (Proof{})
	if !isSigned {
		var err error
		if p, err = drawProof(caller.Account); err != nil {
			return err
		}
	}
	err := rt.signatures.Use(r.Context(), p)
	switch {
	case err == nil:
		if isSigned {
			rt.used.add(p.Signature)
		}
		return nil
	case errors.Is(err, ErrUsed):
		rt.used.add(p.Signature)
		rt.limiter.giveBack(w.Header(), p.Account, class) // else a replay would take the rate of the account
		return signatureUsed()
	case errors.Is(err, ErrAccountFull):
		e := refuse(RateLimited, "the account %s has changed more in half an hour than the region takes of one account; "+
			"wait, and change less", p.Account)
		e.RetryAfter = accountRetry
		return e
	}
	return refuse(SignaturesNotReady,
		"the region cannot record that this request was received, so it accepts no changes now; try again").Because(err)
}

func signatureUsed() *rest.Error {
	return refuse(SignatureUsed,
		"a request with this signature was received before, and each signature is good for one change; sign "+
			"again (two equal requests in one second have one signature, unless a signed header differs)")
}

// maxRecent is how many used signatures a process has in memory: some 6 MB.
const maxRecent = 1 << 16

// recentSignatures are the signatures of which this process learned last that they are used. A request
// with one of them is refused without a transaction. Several goroutines may use it.
type recentSignatures struct {
	mu   sync.Mutex
	has  map[[32]byte]bool
	ring [][32]byte // in the order of add, from next on
	next int
}

func newRecentSignatures() *recentSignatures { return &recentSignatures{has: map[[32]byte]bool{}} }

// contains reports whether a signature is known to be used.
func (s *recentSignatures) contains(signature [32]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.has[signature]
}

// add remembers a used signature, and forgets the oldest one when there are maxRecent.
func (s *recentSignatures) add(signature [32]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has[signature] {
		return
	}
	s.has[signature] = true
	if len(s.ring) < maxRecent {
		s.ring = append(s.ring, signature)
		return
	}
	delete(s.has, s.ring[s.next])
	s.ring[s.next] = signature
	s.next = (s.next + 1) % maxRecent
}
