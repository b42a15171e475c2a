//go:build !linux

package agent

import "os"

func fdatasync(f *os.File) error { return f.Sync() }
