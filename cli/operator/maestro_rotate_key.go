package operator

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/envelope"
	"atoll.dev/internal/pause"
)

// keyFileRead is how long processes may take to read a changed key file: a few times what they do. The copy of the
// region takes the file each 5 s, and must have the key before the first work that is sealed with it.
const keyFileRead = 15 * time.Second

func maestroRotateKey(session *terminal.Session) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "rotate-key", Short: "Encrypt Secrets of works with a new key", Args: cobra.NoArgs,
		Long: `Adds a new key to the file of --envelope-key-file, and makes it the first when all
processes that have the file have read it. Maestro seals with it from then on, and seals the
works that it has again in the background. The old keys stay in the file until you remove
them: when the metric maestro_envelope_other_keys is 0, no work needs them.`,
	}
	cmd.Flags().StringVar(&file, "file", "", "the key file (default: that of the region on this machine)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if file == "" {
			home, err := session.Home()
			if err != nil {
				return err
			}
			file = home.EnvelopeKeys()
		}
		name, err := envelope.AddKey(file)
		if err != nil {
			return err
		}
		if !pause.For(cmd.Context(), keyFileRead) {
			return fmt.Errorf("key %s opens and does not seal yet: put its line in %s before the others", name, file)
		}
		if err := envelope.Promote(file, name); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s seals from now on. Works are sealed again in the background. "+
			"Remove the other keys from %s when the metric maestro_envelope_other_keys is 0.\n", name, file)
		return nil
	}
	return cmd
}
