package fleet

import "context"

// Run does what no request asks for, until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
