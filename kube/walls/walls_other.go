//go:build !linux

package walls

import "errors"

func raiseLoopback() error       { return errors.ErrUnsupported }
func dropPrivileges() error      { return errors.ErrUnsupported }
func restrictFiles(string) error { return errors.ErrUnsupported }
func narrowView(string) error    { return errors.ErrUnsupported }
func becomeUser(int) error       { return errors.ErrUnsupported }
func restrictCalls() error       { return errors.ErrUnsupported }
