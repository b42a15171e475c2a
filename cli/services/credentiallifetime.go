package services

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cluster"
)

// addCredentialLifetimeFlag adds --max-access-lifetime, which the Platform API and hosting have: the
// Platform API refuses longer requests, and hosting signs nothing longer for anybody.
func addCredentialLifetimeFlag(cmd *cobra.Command, longest *time.Duration) {
	cmd.Flags().DurationVar(longest, "max-access-lifetime", cluster.MaxCredentialLifetime,
		"the longest lifetime of a credential of a cluster, 1m to 720h; set it for platform and for hosting")
}

// checkCredentialLifetime refuses a value of --max-access-lifetime that no credential can have.
func checkCredentialLifetime(longest time.Duration) error {
	if longest < cluster.MinCredentialLifetime || longest > cluster.LongestCredentialLifetime {
		return fmt.Errorf("--max-access-lifetime %s is not between %s and %s", longest,
			cluster.MinCredentialLifetime, cluster.LongestCredentialLifetime)
	}
	return nil
}
