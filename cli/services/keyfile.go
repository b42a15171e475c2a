package services

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/envelope"
)

// watchKeyFile reports an invalid key file in the log and by a metric while the service runs.
func (p *parts) watchKeyFile(s *System, keys *envelope.KeyFile) {
	s.Ops.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "atoll_key_file_invalid",
		Help: "1 while the key file is invalid: the earlier keys are used, and a restart fails or loses what is sealed.",
	}, func() float64 {
		if keys.Problem() != nil {
			return 1
		}
		return 0
	}))
	p.run(func(ctx context.Context) error {
		keys.Watch(ctx, s.Log)
		return nil
	})
}
