//go:build !linux

package idle

import "time"

// used makes the plane seem as busy as it can be, so that it never becomes idle.
func (*thisProcess) used() time.Duration { return time.Duration(time.Now().UnixNano()) }

func setSlack(time.Duration) {}
