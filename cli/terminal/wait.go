package terminal

import (
	"time"

	"github.com/spf13/cobra"
)

// WaitFlags are the flags --wait and --timeout.
type WaitFlags struct {
	Wait    bool
	Timeout time.Duration
}

// AddWaitFlags gives cmd the flags --wait and --timeout. until completes "wait until it is ...".
func AddWaitFlags(cmd *cobra.Command, until string) *WaitFlags {
	f := &WaitFlags{}
	cmd.Flags().BoolVar(&f.Wait, "wait", false, "wait until it is "+until+", showing progress")
	cmd.Flags().DurationVar(&f.Timeout, "timeout", 2*time.Minute, "how long to wait")
	return f
}
