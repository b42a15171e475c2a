package store

import "context"

// OpenPatiently opens a store with the limits of Patient.
func OpenPatiently(ctx context.Context, o Options) (*Store, error) { return Open(ctx, o.Patient()) }
