package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/envelope"
	"atoll.dev/internal/pause"
	"atoll.dev/maestro/database"
	"atoll.dev/maestro/envelopekeys"
	"atoll.dev/store"
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
them: when the metric maestro_envelope_other_keys is 0, no work needs them.

The command writes an audit record of each of the two changes into Maestro's database, so
it needs the file and the database.`,
		Example: `  atoll maestro rotate-key
  atoll maestro rotate-key --file envelope.keys --dsn postgres://maestro@db/maestro`,
	}
	cmd.Flags().StringVar(&file, "file", "", "the key file, with --dsn (default: that of the region on this machine)")
	dsn := terminal.AddDatabaseFlags(cmd, "dsn", "PostgreSQL database of Maestro alone, with --file")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		file, address, err := envelopeKeysOf(session, file, dsn)
		if err != nil {
			return err
		}
		db, err := openMaestroDatabase(cmd.Context(), file, address)
		if err != nil {
			return err
		}
		defer db.Close()
		ctx := asDatabaseOperator(cmd.Context(), "RotateEnvelopeKey")
		name, err := envelopekeys.Add(ctx, db, file)
		if err != nil {
			return err
		}
		if !pause.For(ctx, keyFileRead) {
			return fmt.Errorf("key %s opens and does not seal yet: remove its line from %s, and rotate again", name, file)
		}
		if err := envelopekeys.Promote(ctx, db, file, name); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s seals from now on. Works are sealed again in the background. "+
			"Remove the other keys from %s when the metric maestro_envelope_other_keys is 0.\n", name, file)
		return nil
	}
	return cmd
}

// envelopeKeysOf returns the key file and the address of the database that flags name, by default those of the home.
func envelopeKeysOf(session *terminal.Session, flag string, dsn *terminal.Database) (file, address string, err error) {
	if flag == "" && !dsn.IsGiven() {
		home, err := session.Home()
		if err != nil {
			return "", "", err
		}
		address, file, err = home.MaestroStore()
		return file, address, err
	}
	if flag == "" || !dsn.IsGiven() {
		return "", "", errors.New("--file and --dsn (or --dsn-file) are needed together: the change of the file leaves an " +
			"audit record in Maestro's database")
	}
	address, err = dsn.Read()
	return flag, address, err
}

// openMaestroDatabase opens the database whose Secrets the keys of a file encrypt.
func openMaestroDatabase(ctx context.Context, file, address string) (*store.Store, error) {
	keys, err := envelope.ReadKeyFile(file)
	if err != nil {
		return nil, err
	}
	options := database.Options(address, 0, slog.New(slog.DiscardHandler))
	options.Envelope = keys
	db, err := store.Open(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("Maestro's database: %w", err)
	}
	return db, nil
}
