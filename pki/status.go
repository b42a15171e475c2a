package pki

import (
	"context"
	"crypto/x509"
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
	// Rotation is that of the root; nil when none is under way.
	Rotation *RotationStatus `json:"rotation,omitempty"`
	// Issuing has the issuing CAs that are not revoked, in the order in which they begin; none when the root signs
	// everything itself.
	Issuing []IssuingStatus `json:"issuing"`
	// Damaged has the issuing CAs whose files cannot be used.
	Damaged []DamagedStatus `json:"damaged,omitempty"`
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
	// Root is the fingerprint of the root that has certified it.
	Root string `json:"root"`
	// RenewAfter is when it is renewed if the root's key is there.
	RenewAfter time.Time `json:"renewAfter"`
	// Signs: of its role, it is the last one that has begun. The others sign revocation lists only.
	Signs bool `json:"signs"`
}

// A DamagedStatus is the state of an issuing CA whose file cannot be used.
type DamagedStatus struct {
	Role  Role   `json:"role"`
	File  string `json:"file"`
	Error string `json:"error"` // what is wrong with the file
}

// Status returns the present state of the CA.
func (ca *CA) Status() (Status, error) {
	s, err := ca.statusAt(time.Now())
	if err != nil {
		return s, fmt.Errorf("status of CA %s: %w", ca.dir, err)
	}
	return s, nil
}

func (ca *CA) statusAt(now time.Time) (Status, error) {
	roots := ca.roots()
	s := Status{Issuing: []IssuingStatus{}}
	var err error
	if s.Root, err = ca.rootStatus(roots.present); err != nil {
		return s, err
	}
	have, err := ca.readIssuers()
	if err != nil {
		return s, err
	}
	s.Root.SignsAll = !permitsIssuers(ca.issuingRoot(have))
	for _, i := range have.intact {
		signer := have.signer(i.role, now)
		s.Issuing = append(s.Issuing, IssuingStatus{Role: i.role, Serial: i.cert.SerialNumber.Text(16),
			Root: Fingerprint(i.root), Begins: i.cert.NotBefore.UTC(), Expires: i.cert.NotAfter.UTC(),
			RenewAfter: renewAt(i.cert).UTC(),
			Signs:      signer != nil && signer.cert.Equal(i.cert)})
	}
	for _, d := range have.damaged {
		s.Damaged = append(s.Damaged, DamagedStatus{d.role, d.path, d.err.Error()})
	}
	if roots.next != nil {
		if s.Rotation, err = ca.rotationStatus(roots, have, now); err != nil {
			return s, err
		}
	}
	s.Warnings = s.warningsAt(now)
	return s, nil
}

// rootStatus returns the status of a root.
func (ca *CA) rootStatus(root *x509.Certificate) (RootStatus, error) {
	_, err := ca.rootKey(root, nil)
	s := RootStatus{Fingerprint: Fingerprint(root), Expires: root.NotAfter.UTC(),
		KeyOffline: errors.Is(err, ErrRootOffline)}
	if s.KeyOffline {
		err = nil
	}
	return s, err
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
		if w := s.signerWarning(role, now); w != "" {
			warnings = append(warnings, w)
		}
		for _, d := range s.Damaged {
			if d.Role == role {
				warnings = append(warnings, d.warning())
			}
		}
		for _, i := range s.Issuing {
			if i.Role == role && now.Before(i.Begins) {
				warnings = append(warnings, fmt.Sprintf("the issuing CA of %s with the serial number %s begins at %s and signs "+
					"nothing before: the clock of this machine was ahead when it was made, or is behind now; check the clock", role,
					i.Serial, i.Begins.Format(time.RFC3339)))
			}
		}
	}
	return warnings
}

// signerWarning returns the warning about the issuing CA that signs for a role, or about its absence; "" for none.
func (s Status) signerWarning(role Role, now time.Time) string {
	have := s.signing(role)
	isDamaged := slices.ContainsFunc(s.Damaged, func(d DamagedStatus) bool { return d.Role == role })
	isLater := slices.ContainsFunc(s.Issuing, func(i IssuingStatus) bool { return i.Role == role && now.Before(i.Begins) })
	problem, step := "", "make one with `atoll ca issue --root-key-file FILE`"
	switch {
	case have != nil && !now.After(have.Expires):
		if s.Root.KeyOffline && !now.Before(have.RenewAfter) {
			return fmt.Sprintf("the issuing CA of %s ends at %s, and the root's key is not here to renew it: bring the key "+
				"and run `atoll ca issue --root-key-file FILE`", role, have.Expires.Format(time.RFC3339))
		}
		return ""
	case isDamaged:
		problem, step = "the file of its issuing CA is damaged", "restore it from a backup, or "+step
	case have != nil:
		problem = "the issuing CA has ended at " + have.Expires.Format(time.RFC3339)
	case isLater:
		problem, step = "no issuing CA has begun", "check the clock of this machine, and if it is right, "+step
	default:
		problem = "there is no issuing CA"
	}
	return fmt.Sprintf("no certificate of %s is signed: %s; %s", role, problem, step)
}

// warning returns what an operator must do about a damaged file, and what does not work without it.
func (d DamagedStatus) warning() string {
	return fmt.Sprintf("file %s of an issuing CA of %s is damaged: %s; restore it from a backup, or move it away. "+
		"Without it that issuing CA signs nothing and cannot be revoked. The certificates that it has signed are valid "+
		"until they expire, and another one renews them; but a broker that looks for a revocation list of the CA that "+
		"signed, as Mosquitto does, refuses them", d.File, d.Role, d.Error)
}

// warnEvery is the interval at which a service repeats the warnings of its CA in the log.
const warnEvery = time.Hour

// Run renews issuing CAs that are due, if the root's key is here, removes old audit records that the Platform API has
// gathered, and logs the warnings of the CA's [Status] to log, each hour until ctx is done. It returns nil.
func (s *Server) Run(ctx context.Context, log *slog.Logger) error {
	for {
		if _, _, err := s.ca.CRL(); err != nil {
			log.LogAttrs(ctx, slog.LevelError, "the CA cannot sign revocation lists", slog.Any("error", err))
		}
		if err := s.ca.trimAudit(auditCursor(s.gathered.Load()), time.Now()); err != nil {
			log.LogAttrs(ctx, slog.LevelWarn, "old audit records were not removed, the next round tries again",
				slog.Any("error", err))
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

// Metrics of issuing CAs and of the rotation of the root. They are read from the CA's directory at each scrape.
var (
	issuerExpires = prometheus.NewDesc("pki_issuing_ca_expires_timestamp_seconds",
		"When the issuing CA that signs for a role ends; 0 when there is none.", []string{"role"}, nil)
	issuerRenewal = prometheus.NewDesc("pki_issuing_ca_renewal_due_timestamp_seconds",
		"When the issuing CA that signs for a role is due for renewal, which needs the root's key.", []string{"role"}, nil)
	rootKeyPresent = prometheus.NewDesc("pki_root_key_present",
		"1 when the root's key is in the CA's directory, 0 when it was taken away.", nil, nil)
	rotationPhase = prometheus.NewDesc("pki_root_rotation_phase",
		"1 for the phase of the rotation of the root that is under way, 0 for the others.", []string{"phase"}, nil)
	rotationSince = prometheus.NewDesc("pki_root_rotation_phase_since_timestamp_seconds",
		"When the phase of the rotation of the root began; 0 when no rotation is under way.", nil, nil)
	rotationWaiting = prometheus.NewDesc("pki_root_rotation_waiting",
		"Identities that keep the rotation of the root from its next step; 0 when no rotation is under way.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (s *Server) Describe(to chan<- *prometheus.Desc) {
	s.superseded.Describe(to)
	to <- issuerExpires
	to <- issuerRenewal
	to <- rootKeyPresent
	to <- rotationPhase
	to <- rotationSince
	to <- rotationWaiting
}

// Collect implements [prometheus.Collector]. A CA that cannot be read has none of these metrics. One whose root signs
// everything has none of issuing CAs.
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
	rotation := RotationStatus{}
	since := 0.0
	if status.Rotation != nil {
		rotation, since = *status.Rotation, float64(status.Rotation.Since.Unix())
	}
	for _, phase := range []string{RootPrepared, RootCompleted} {
		value := 0.0
		if rotation.Phase == phase {
			value = 1
		}
		gauge(rotationPhase, value, phase)
	}
	gauge(rotationSince, since)
	gauge(rotationWaiting, float64(len(rotation.Waiting)))
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
