package pki

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"atoll.dev/internal/pause"
)

// Run keeps the certificate valid until ctx is done: it renews at two thirds of the
// certificate's life, with a new key, and retries with back-off until it succeeds.
// Open connections keep the old certificate; new ones use the new certificate. For a
// server, Run also keeps the revocation list fresh, see [Identity.ServerTLS]. It
// returns nil.
func (id *Identity) Run(ctx context.Context) error {
	var follower sync.WaitGroup
	follower.Go(func() { id.followCRL(ctx) })
	follower.Go(func() { id.keepConfirmed(ctx) })
	defer follower.Wait()
	for attempt := 0; ; {
		wait := time.Until(renewAt(id.Certificate()))
		if attempt > 0 {
			wait = backoff(attempt)
		}
		if !pause.For(ctx, min(wait, clockCheck)) {
			return nil
		}
		if wait > clockCheck {
			continue
		}
		if err := id.Renew(ctx); err != nil {
			attempt++
			id.o.Logger.LogAttrs(ctx, slog.LevelWarn, "certificate not renewed, will be tried again",
				slog.String("identity", string(id.o.Name)), slog.Any("error", err),
				slog.Time("expires", id.Certificate().NotAfter))
			continue
		}
		attempt = 0
		id.wakeConfirm()
		id.o.Logger.LogAttrs(ctx, slog.LevelInfo, "certificate renewed",
			slog.String("identity", string(id.o.Name)), slog.Time("expires", id.Certificate().NotAfter))
	}
}

// Renew obtains a certificate for a new key now. It authenticates with the present
// certificate and, when the service refuses that, with the join token if there is one.
func (id *Identity) Renew(ctx context.Context) error {
	err := id.renewByCertificate(ctx)
	if err == nil {
		return id.dropToken()
	}
	if r, ok := errors.AsType[*refusal](err); ok && r.isFinal() {
		if token, tokenErr := id.token(); tokenErr == nil && token != "" {
			return id.enrolAnew(ctx, token, err)
		}
	}
	return fmt.Errorf("renewing the certificate at %s: %w", id.o.URL, err)
}

// renewByCertificate obtains a certificate for a new key, authenticated by the present
// certificate. The key is on disk before the request: when the answer is lost, the next
// request has the same key, also after a restart. By that the CA distinguishes it from a
// request of somebody who has a copy of the present key.
func (id *Identity) renewByCertificate(ctx context.Context) error {
	id.renewal.Lock()
	defer id.renewal.Unlock()
	key, err := id.nextKey()
	if err != nil {
		return err
	}
	present := id.Certificate()
	chain, err := id.requestCertificate(ctx, key, "")
	if err != nil {
		id.recordRefusal(present, err)
		if r, ok := errors.AsType[*refusal](err); ok && r.isFinal() {
			return errors.Join(err, removeFile(id.o.Dir, renewalFile)) // nothing was signed for this key
		}
		return err
	}
	return id.save(key, chain)
}

// nextKey returns the key of the renewal that is under way, or makes a new one.
func (id *Identity) nextKey() (*ecdsa.PrivateKey, error) {
	key, _, err := id.load(renewalFile)
	if err != nil || key.PublicKey.Equal(id.Certificate().PublicKey) {
		// Damaged, or of the last renewal.
		if err := removeFile(id.o.Dir, renewalFile); err != nil {
			return nil, err
		}
		key, _, err = id.load(renewalFile)
	}
	return key, err
}

// isConfirmed reports whether the CA knows that the present certificate has arrived.
func (id *Identity) isConfirmed() bool {
	data, err := os.ReadFile(filepath.Join(id.o.Dir, renewalFile))
	if err != nil {
		return true
	}
	key, _, err := decodePair(data)
	return err != nil || !key.PublicKey.Equal(id.Certificate().PublicKey)
}

// confirmEvery is the longest interval between two requests of keepConfirmed. So a process learns within this time that
// it shall trust another root.
const confirmEvery = 15 * time.Minute

// confirm reports to the CA that the present certificate has arrived, and which roots this process trusts. From then on
// the CA treats a use of the previous certificate as that of a copied key. It uses the roots in the answer, and reports
// whether the CA wants the certificate to be renewed now.
func (id *Identity) confirm(ctx context.Context) (renew bool, err error) {
	id.renewal.Lock()
	defer id.renewal.Unlock()
	for range 2 { // once more when the roots have changed, so that the CA knows
		trusted := id.trust.Load()
		body, err := json.Marshal(ConfirmRequest{Roots: trusted.fingerprints()})
		if err != nil {
			return false, err
		}
		status, answer, err := id.call(ctx, "/v1/confirm", body, "")
		switch {
		case err != nil:
			return false, fmt.Errorf("confirming the certificate at %s: %w", id.o.URL, err)
		case status == http.StatusOK:
			var said ConfirmResponse
			if err := json.Unmarshal(answer, &said); err != nil {
				return false, fmt.Errorf("confirming the certificate at %s: %w", id.o.URL, err)
			}
			if err := id.follow(ctx, said.Roots, *id.chain.Load()); err != nil {
				return false, err
			}
			renew = said.Renew
		case status == http.StatusNotFound:
			// A signing service of an earlier version: the next renewal confirms.
		case status != http.StatusNoContent: // which is the answer of an earlier version, too
			err = decodeRefusal(status, answer)
			id.recordRefusal(id.Certificate(), err)
			if r, ok := errors.AsType[*refusal](err); !ok || !r.isFinal() {
				return false, fmt.Errorf("confirming the certificate at %s: %w", id.o.URL, err)
			}
			id.o.Logger.LogAttrs(ctx, slog.LevelWarn, "the CA does not accept the present certificate",
				slog.String("identity", string(id.o.Name)), slog.Any("error", err))
		}
		if !id.isConfirmed() { // the key of a renewal that is under way stays
			if err := removeFile(id.o.Dir, renewalFile); err != nil {
				return false, err
			}
		}
		if id.trust.Load() == trusted {
			break
		}
	}
	return renew, nil
}

// keepConfirmed confirms the present certificate, at the beginning, after each renewal, and each confirmEvery,
// until ctx is done. It retries with back-off until the CA answers. It renews the certificate when the CA asks for it.
func (id *Identity) keepConfirmed(ctx context.Context) {
	for attempt := 0; ; attempt++ {
		renew, err := id.confirm(ctx)
		if err == nil && renew {
			if err = id.Renew(ctx); err == nil {
				id.o.Logger.LogAttrs(ctx, slog.LevelInfo, "certificate renewed below the next root",
					slog.String("identity", string(id.o.Name)))
				_, err = id.confirm(ctx)
			}
		}
		wait := backoff(attempt)
		if err == nil {
			attempt, wait = -1, confirmEvery/2+rand.N(confirmEvery/2)
		} else if ctx.Err() == nil {
			id.o.Logger.LogAttrs(ctx, slog.LevelDebug, "certificate not confirmed, will be tried again",
				slog.String("identity", string(id.o.Name)), slog.Any("error", err))
		}
		pause.ForWake(ctx, id.wake, wait)
		if ctx.Err() != nil {
			return
		}
	}
}

// wakeConfirm makes keepConfirmed ask the CA now.
func (id *Identity) wakeConfirm() {
	select {
	case id.wake <- struct{}{}:
	default:
	}
}

// renewAt returns the time at which two thirds of a certificate's life are over. The
// life is counted from the time of issue: NotBefore lies skew before it, and a life
// shorter than half of skew would be due for renewal at once.
func renewAt(c *x509.Certificate) time.Time {
	issued := c.NotBefore.Add(skew)
	return issued.Add(c.NotAfter.Sub(issued) / 3 * 2)
}

// backoff returns the pause before a retry: it doubles from retryMin to retryMax, with
// jitter, which spreads the retries of many processes after one outage.
func backoff(attempt int) time.Duration {
	d := retryMin << min(attempt, 8)
	d = min(d, retryMax)
	return d/2 + rand.N(d/2)
}
