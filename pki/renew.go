package pki

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
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
// certificate.
func (id *Identity) renewByCertificate(ctx context.Context) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	cert, err := id.requestCertificate(ctx, key, "")
	if err != nil {
		return err
	}
	return id.save(key, cert)
}

// renewAt returns the time at which two thirds of a certificate's life are over. The
// life is counted from the time of issue: NotBefore lies skew before it, so a life that
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
