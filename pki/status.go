package pki

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/internal/pause"
)

// A Status is the state of a CA's root and of its issuing CAs.
type Status struct {
	Root RootStatus `json:"root"`
	// Issuing has the issuing CAs that are not revoked, in the order in which they begin; none when the root signs
	// everything itself.
	Issuing []IssuingStatus `json:"issuing"`
	// Warnings say what an operator must do, with the next step.
	Warnings []string `json:"warnings"`
}

// A RootStatus is the state of the root.
type RootStatus struct {
	Fingerprint string    `json:"fingerprint"`
	Expires     time.Time `json:"expires"`
	// KeyOffline: the root's key is not in the CA's directory.
	KeyOffline bool `json:"keyOffline"`
	// SignsAll: the root permits no issuing CAs, and signs certificates of processes itself.
	SignsAll bool `json:"signsAll"`
}

// An IssuingStatus is the state of an issuing CA.
type IssuingStatus struct {
	Role    Role      `json:"role"`
	Serial  string    `json:"serial"` // hex
	Begins  time.Time `json:"begins"`
	Expires time.Time `json:"expires"`
	// RenewAfter is when it is renewed if the root's key is there.
	RenewAfter time.Time `json:"renewAfter"`
	// Signs: of its role, it is the last one that has begun. The others sign revocation lists only.
	Signs bool `json:"signs"`
}

// Status returns the present state of the CA.
func (ca *CA) Status() (Status, error) {
	s := Status{Root: RootStatus{Fingerprint: Fingerprint(ca.cert), Expires: ca.cert.NotAfter.UTC(),
		SignsAll: !ca.hasIssuers()}, Issuing: []IssuingStatus{}}
	_, err := ca.rootKey()
	if s.Root.KeyOffline = errors.Is(err, ErrRootOffline); err != nil && !s.Root.KeyOffline {
		return s, fmt.Errorf("status of CA %s: %w", ca.dir, err)
	}
	all, err := ca.issuers()
	if err != nil {
		return s, fmt.Errorf("status of CA %s: %w", ca.dir, err)
	}
	now := time.Now()
	for _, i := range all {
		signer := signerOf(all, i.role, now)
		s.Issuing = append(s.Issuing, IssuingStatus{Role: i.role, Serial: i.cert.SerialNumber.Text(16),
			Begins: i.cert.NotBefore.UTC(), Expires: i.cert.NotAfter.UTC(), RenewAfter: renewAt(i.cert).UTC(),
			Signs: signer != nil && signer.cert.Equal(i.cert)})
	}
	s.Warnings = s.warningsAt(now)
	return s, nil
}

// signing returns the issuing CA that signs for a role, or nil.
func (s Status) signing(role Role) *IssuingStatus {
	for i := range s.Issuing {
		if s.Issuing[i].Role == role && s.Issuing[i].Signs {
			return &s.Issuing[i]
		}
	}
	return nil
}

// warningsAt returns what an operator must do at a time.
func (s Status) warningsAt(now time.Time) []string {
	warnings := []string{}
	if s.Root.SignsAll {
		return warnings
	}
	for _, role := range Roles {
		have := s.signing(role)
		later := slices.DeleteFunc(slices.Clone(s.Issuing), func(i IssuingStatus) bool {
			return i.Role != role || !now.Before(i.Begins)
		})
		switch {
		case have == nil && len(later) > 0:
			warnings = append(warnings, fmt.Sprintf("no certificate of %s is signed: no issuing CA has begun; check the "+
				"clock of this machine, and if it is right, make one with `atoll ca issue --root-key-file FILE`", role))
		case have == nil:
			warnings = append(warnings, fmt.Sprintf("no certificate of %s is signed: there is no issuing CA; make one "+
				"with `atoll ca issue --root-key-file FILE`", role))
		case now.After(have.Expires):
			warnings = append(warnings, fmt.Sprintf("no certificate of %s is signed: the issuing CA has ended at %s; make "+
				"one with `atoll ca issue --root-key-file FILE`", role, have.Expires.Format(time.RFC3339)))
		case s.Root.KeyOffline && !now.Before(have.RenewAfter):
			warnings = append(warnings, fmt.Sprintf("the issuing CA of %s ends at %s, and the root's key is not here to "+
				"renew it: bring the key and run `atoll ca issue --root-key-file FILE`", role, have.Expires.Format(time.RFC3339)))
		}
		for _, i := range later {
			warnings = append(warnings, fmt.Sprintf("the issuing CA of %s with the serial number %s begins at %s and signs "+
				"nothing before: the clock of this machine was ahead when it was made, or is behind now; check the clock", role,
				i.Serial, i.Begins.Format(time.RFC3339)))
		}
	}
	return warnings
}

// warnEvery is the interval at which a service repeats the warnings of its CA in the log.
const warnEvery = time.Hour

// Run renews issuing CAs that are due, if the root's key is here, and logs the warnings of the CA's [Status] to log,
// each hour until ctx is done. It returns nil.
func (s *Server) Run(ctx context.Context, log *slog.Logger) error {
	for {
		if _, _, err := s.ca.CRL(); err != nil {
			log.LogAttrs(ctx, slog.LevelError, "the CA cannot sign revocation lists", slog.Any("error", err))
		}
		status, err := s.ca.Status()
		if err != nil {
			log.LogAttrs(ctx, slog.LevelError, "the CA cannot be read", slog.Any("error", err))
		}
		for _, w := range status.Warnings {
			log.LogAttrs(ctx, slog.LevelWarn, "the CA needs an operator", slog.String("warning", w))
		}
		if !pause.For(ctx, warnEvery) {
			return nil
		}
	}
}

// Metrics of issuing CAs. They are read from the CA's directory at each scrape.
var (
	issuerExpires = prometheus.NewDesc("pki_issuing_ca_expires_timestamp_seconds",
		"When the issuing CA that signs for a role ends; 0 when there is none.", []string{"role"}, nil)
	issuerRenewal = prometheus.NewDesc("pki_issuing_ca_renewal_due_timestamp_seconds",
		"When the issuing CA that signs for a role is due for renewal, which needs the root's key.", []string{"role"}, nil)
	rootKeyPresent = prometheus.NewDesc("pki_root_key_present",
		"1 when the root's key is in the CA's directory, 0 when it was taken away.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (s *Server) Describe(to chan<- *prometheus.Desc) {
	s.superseded.Describe(to)
	to <- issuerExpires
	to <- issuerRenewal
	to <- rootKeyPresent
}

// Collect implements [prometheus.Collector]. A CA that cannot be read, or whose root signs everything, has no metrics
// of issuing CAs.
func (s *Server) Collect(to chan<- prometheus.Metric) {
	s.superseded.Collect(to)
	status, err := s.ca.Status()
	if err != nil {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	present := 1.0
	if status.Root.KeyOffline {
		present = 0
	}
	gauge(rootKeyPresent, present)
	if status.Root.SignsAll {
		return
	}
	for _, role := range Roles {
		expires, due := 0.0, 0.0
		if have := status.signing(role); have != nil {
			expires, due = float64(have.Expires.Unix()), float64(have.RenewAfter.Unix())
		}
		gauge(issuerExpires, expires, string(role))
		gauge(issuerRenewal, due, string(role))
	}
}
