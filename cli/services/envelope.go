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

// Open reads the key file and connects to the plugin. The caller closes the keys.
func (f *EnvelopeFlags) Open(ctx context.Context) (none kms.Keys, err error) {
	var file *envelope.KeyFile
	if f.file != "" {
		if file, err = envelope.ReadKeyFile(f.file); err != nil {
			return none, fmt.Errorf("--envelope-key-file: %w", err)
		}
	}
	var plugin *kms.Plugin
	if f.kms != "" {
		if plugin, err = kms.Open(ctx, f.kms); err != nil {
			return none, fmt.Errorf("--envelope-kms: %w", err)
		}
	}
	return kms.NewKeys(file, plugin), nil
}

// watchKeys reports an invalid key file in the log and by a metric while the service runs, and a plugin that does not
// answer by a metric.
func (p *parts) watchKeys(s *System, keys kms.Keys) {
	if keys.File != nil {
		p.watchKeyFile(s, keys.File)
	}
	if keys.Plugin != nil {
		s.Ops.Registry.MustRegister(kmsGauge(keys.Plugin.Problem))
	}
}

// kmsGauge shows whether a plugin answers. It calls problem when metrics are read.
func kmsGauge(problem func() error) prometheus.GaugeFunc {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "atoll_kms_unavailable",
		Help: "1 while the KMS plugin does not answer: only what needs no other key than those in memory goes on.",
	}, func() float64 {
		if problem() != nil {
			return 1
		}
		return 0
	})
}
