package kms_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"atoll.dev/envelope"
	"atoll.dev/envelope/kms"
	"atoll.dev/envelope/kms/kmstest"
)

func TestKeyFilesAndPluginsAreKMS(t *testing.T) {
	t.Run("key file", func(t *testing.T) {
		kmstest.Run(t, func(t *testing.T) kmstest.Subject {
			path := filepath.Join(t.TempDir(), "keys")
			if err := envelope.EnsureKeyFile(path); err != nil {
				t.Fatal(err)
			}
			keys, err := envelope.ReadKeyFile(path)
			if err != nil {
				t.Fatal(err)
			}
			return kmstest.Subject{KMS: keys, Rotate: func() {
				name := envelope.NewKeyName()
				err := envelope.AddKey(path, name)
				if err == nil {
					err = envelope.Promote(path, name)
				}
				if err != nil {
					t.Error(err)
				}
				<-time.After(1100 * time.Millisecond) // a key file is read again after a second
			}}
		})
	})
	t.Run("plugin", func(t *testing.T) {
		kmstest.Run(t, func(t *testing.T) kmstest.Subject {
			server := kmstest.NewServer(t)
			return kmstest.Subject{KMS: kmstest.Open(t, server), Rotate: server.Rotate}
		})
	})
	t.Run("plugin beside a key file", func(t *testing.T) {
		kmstest.Run(t, func(t *testing.T) kmstest.Subject {
			server := kmstest.NewServer(t)
			return kmstest.Subject{KMS: kms.WithKeyFile(kmstest.Open(t, server), keyFile(t)), Rotate: server.Rotate}
		})
	})
}

func TestAPluginThatIsAwayIsSaidAtTheStart(t *testing.T) {
	server := kmstest.NewServer(t)
	server.SetHealth("the cloud is away")
	_, err := kms.Open(t.Context(), server.Endpoint())
	if !errors.Is(err, kms.ErrUnavailable) || !strings.Contains(err.Error(), "the cloud is away") {
		t.Errorf("a plugin that is not well: %v", err)
	}
	server.Down()
	_, err = kms.Open(t.Context(), server.Endpoint())
	if !errors.Is(err, kms.ErrUnavailable) || !strings.Contains(err.Error(), "start the plugin") ||
		!strings.Contains(err.Error(), server.Endpoint()) {
		t.Errorf("a plugin that is down: %v", err)
	}
	for _, endpoint := range []string{"", "/run/kms.sock", "unix://kms.sock", "tcp://127.0.0.1:1", "unix:///"} {
		if p, err := kms.Open(t.Context(), endpoint); err == nil {
			p.Close()
			t.Errorf("endpoint %q is accepted", endpoint)
		}
	}
}

// A plugin that is away, or does not answer, costs neither what is in memory nor a verdict on what is stored.
func TestWhatWasUnwrappedOutlivesThePlugin(t *testing.T) {
	ctx, server := t.Context(), kmstest.NewServer(t)
	plugin := kmstest.Open(t, server)
	known, err := envelope.NewBox(ctx, plugin)
	if err != nil {
		t.Fatal(err)
	}
	other, err := envelope.NewBox(ctx, plugin)
	if err != nil {
		t.Fatal(err)
	}
	opener := envelope.NewOpener(plugin)
	opener.Remember(known)
	seal := func(b *envelope.Box) []byte {
		object, err := b.Seal("a", []byte("content"))
		if err != nil {
			t.Fatal(err)
		}
		return object
	}
	server.Down()
	if got, err := opener.Open(ctx, "a", seal(known)); err != nil || string(got) != "content" {
		t.Errorf("with a key in memory: %q, %v", got, err)
	}
	if plugin.Problem() != nil {
		t.Errorf("before anybody asked: %v", plugin.Problem())
	}
	if _, err := opener.Open(ctx, "a", seal(other)); !errors.Is(err, kms.ErrUnavailable) ||
		errors.Is(err, envelope.ErrCorrupt) {
		t.Errorf("with a key that nobody has in memory: %v", err)
	}
	if plugin.Problem() == nil {
		t.Error("a plugin that is down has no problem")
	}
	server.Up(t)
	server.Hang()
	short, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	waits := make(chan error, 1)
	go func() {
		_, err := opener.Open(short, "a", seal(other))
		waits <- err
	}()
	if got, err := opener.Open(ctx, "a", seal(known)); err != nil || string(got) != "content" {
		t.Errorf("beside a question to a plugin that hangs: %q, %v", got, err)
	}
	if err := <-waits; !errors.Is(err, kms.ErrUnavailable) {
		t.Errorf("a plugin that hangs: %v", err)
	}
	server.Continue()
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, err = opener.Open(ctx, "a", seal(other)); err == nil || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		t.Errorf("after the plugin is back: %v", err)
	}
	if plugin.Problem() != nil {
		t.Errorf("a plugin that answers: %v", plugin.Problem())
	}
	if n := server.Unwraps(); n != 1 {
		t.Errorf("the plugin unwrapped %d data keys, one was needed", n)
	}
}

func TestAServiceGoesFromAKeyFileToAPlugin(t *testing.T) {
	ctx, file := t.Context(), keyFile(t)
	old, err := file.Wrap(ctx, make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	plugin := kmstest.Open(t, kmstest.NewServer(t))
	both := kms.WithKeyFile(plugin, file)
	if _, err := both.Unwrap(ctx, old); err != nil {
		t.Error(err)
	}
	if w, err := both.Wrap(ctx, make([]byte, 32)); err != nil || !kms.IsPluginKey(w) {
		t.Errorf("%+v, %v", w, err)
	}
	if _, err := plugin.Unwrap(ctx, old); err == nil || !strings.Contains(err.Error(), "key file") {
		t.Errorf("without the file: %v", err)
	}
}

func keyFile(t *testing.T) *envelope.KeyFile {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, envelope.NewKeyLine("k1"), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := envelope.ReadKeyFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
