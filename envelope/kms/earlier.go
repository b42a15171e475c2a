package kms

import (
	"context"

	"atoll.dev/envelope"
)

// WithKeyFile returns a KMS that wraps with the plugin, and also unwraps what the keys of a file have wrapped: for a
// service that goes over from a key file to a plugin.
func WithKeyFile(plugin *Plugin, file *envelope.KeyFile) envelope.KMS {
	return withKeyFile{plugin, file}
}

type withKeyFile struct {
	*Plugin
	file *envelope.KeyFile
}

// Unwrap implements envelope.KMS.
func (k withKeyFile) Unwrap(ctx context.Context, w envelope.WrappedKey) ([]byte, error) {
	if IsPluginKey(w) {
		return k.Plugin.Unwrap(ctx, w)
	}
	return k.file.Unwrap(ctx, w)
}
