package services

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"atoll.dev/envelope"
	"atoll.dev/envelope/kms"
)

// EnvelopeFlags are the flags that name what encrypts sensitive values in a database: keys in a file, a KMS plugin, or
// the plugin while values that were sealed with the keys of the file are sealed again.
type EnvelopeFlags struct {
	file string
	kms  string // endpoint
}

// Add adds the flags to those of a command.
func (f *EnvelopeFlags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "envelope-key-file", "",
		"file of the keys that encrypt the contents of Secrets in the database (default: they are stored in clear)")
	flags.StringVar(&f.kms, "envelope-kms", "",
		"unix:///PATH, the socket of a KMS v2 plugin of Kubernetes, which encrypts instead of the key file; a key file "+
			"beside it opens what was encrypted with it before")
}

// Envelope is an opened envelope.KMS.
type Envelope struct {
	KMS    envelope.KMS // nil: nothing is encrypted
	file   *envelope.KeyFile
	plugin *kms.Plugin
}

// Open reads the key file and connects to the plugin. The caller calls Close.
func (f *EnvelopeFlags) Open(ctx context.Context) (e Envelope, err error) {
	if f.file != "" {
		if e.file, err = envelope.ReadKeyFile(f.file); err != nil {
			return e, fmt.Errorf("--envelope-key-file: %w", err)
		}
		e.KMS = e.file
	}
	if f.kms == "" {
		return e, nil
	}
	if e.plugin, err = kms.Open(ctx, f.kms); err != nil {
		return e, fmt.Errorf("--envelope-kms: %w", err)
	}
	e.KMS = e.plugin
	if e.file != nil {
		e.KMS = kms.WithKeyFile(e.plugin, e.file)
	}
	return e, nil
}

// Close closes the connection to the plugin.
func (e Envelope) Close() {
	if e.plugin != nil {
		e.plugin.Close()
	}
}

// watchEnvelope reports an invalid key file in the log and by a metric while the service runs, and a plugin that does
// not answer by a metric.
func (p *parts) watchEnvelope(s *System, e Envelope) {
	if e.file != nil {
		p.watchKeyFile(s, e.file)
	}
	if e.plugin != nil {
		s.Ops.Registry.MustRegister(kmsGauge(e.plugin.Problem))
	}
}

// kmsGauge shows whether a plugin answers. It calls problem when metrics are read.
func kmsGauge(problem func() error) prometheus.GaugeFunc {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "atoll_kms_unavailable",
		Help: "1 while the KMS plugin does not answer: keys in memory go on, and a restart fails.",
	}, func() float64 {
		if problem() != nil {
			return 1
		}
		return 0
	})
}
