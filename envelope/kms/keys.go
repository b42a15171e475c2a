package kms

import (
	"context"

	"atoll.dev/envelope"
)

// Keys are the keys with which a service encrypts: those of a file, those of a plugin, or both while some content is
// still encrypted with the file's keys. The KMS of the zero value is nil: the service encrypts nothing.
type Keys struct {
	envelope.KMS
	File   *envelope.KeyFile // nil: none
	Plugin *Plugin           // nil: none
}

// NewKeys returns the keys of a file and a plugin, each of which may be nil. With both, the plugin wraps, and each
// unwraps what it has wrapped.
func NewKeys(file *envelope.KeyFile, plugin *Plugin) Keys {
	k := Keys{File: file, Plugin: plugin}
	switch {
	case file != nil && plugin != nil:
		k.KMS = WithKeyFile(plugin, file)
	case plugin != nil:
		k.KMS = plugin
	case file != nil:
		k.KMS = file
	}
	return k
}

// Close closes the connection to the plugin.
func (k Keys) Close() {
	if k.Plugin != nil {
		k.Plugin.Close()
	}
}

// WithKeyFile returns a KMS that wraps with the plugin, and also unwraps data keys that the keys of a file have
// wrapped. It is for a service that migrates from a key file to a plugin.
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
