package terminal

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/internal/pgsession"
)

// Database is the address of a PostgreSQL database, which a command takes from one of two flags:
// --NAME with the address itself, or --NAME-file with a file that contains it. The address of --NAME
// must have no password: every user of the machine reads it in the list of processes. The password may be
// in a file of its own, --NAME-password-file, such as one of a Secret that a pod mounts.
type Database struct{ name, address, file, passwordFile string }

// AddDatabaseFlags adds --NAME, --NAME-file and --NAME-password-file to a command, which refuses a password
// in --NAME before it does anything else.
func AddDatabaseFlags(cmd *cobra.Command, name, usage string) *Database {
	d := &Database{name: name}
	cmd.Flags().StringVar(&d.address, name, "", usage+", without a password")
	cmd.Flags().StringVar(&d.file, name+"-file", "", "file with the address of that database, which may have a password")
	cmd.Flags().StringVar(&d.passwordFile, name+"-password-file", "", "file with the password of that database, when "+
		"its address has none")
	before := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if hasPassword(d.address) {
			return d.errPassword()
		}
		if before == nil {
			return nil
		}
		return before(cmd, args)
	}
	return d
}

func (d *Database) errPassword() error {
	return fmt.Errorf("--%s has a password, which every user of this machine can read in the list of processes: "+
		"write the address into a file and name it by --%[1]s-file, or leave the password out and write it into a file "+
		"that --%[1]s-password-file names, or the one that PGPASSFILE names", d.name)
}

// IsGiven reports whether one of the flags is given.
func (d *Database) IsGiven() bool { return d.address != "" || d.file != "" }

// Read returns the address, with the password of the password file. The error, which contains no part of
// the address and of the password, is that of a missing address, of both flags, of a password in an
// argument, of two passwords, or of a file.
func (d *Database) Read() (string, error) {
	address, err := d.readAddress()
	if err != nil || d.passwordFile == "" {
		return address, err
	}
	if hasPassword(address) {
		return "", fmt.Errorf("the address in --%s-file has a password, and --%[1]s-password-file names another; give one",
			d.name)
	}
	data, err := os.ReadFile(d.passwordFile)
	if err != nil {
		return "", fmt.Errorf("--%s-password-file: %w", d.name, err)
	}
	password := strings.TrimRight(string(data), "\r\n")
	if password == "" {
		return "", fmt.Errorf("--%s-password-file: the file is empty", d.name)
	}
	return withPassword(address, password), nil
}

// withPassword adds a password to an address, in the form that the address has.
func withPassword(address, password string) string {
	if scheme, _, isURL := strings.Cut(address, "://"); !isURL || strings.ContainsAny(scheme, " =") {
		return address + " password='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password) + "'"
	}
	separator := "?"
	if strings.Contains(address, "?") {
		separator = "&"
	}
	// The driver takes + for itself, and not for a space.
	return address + separator + "password=" + strings.ReplaceAll(url.QueryEscape(password), "+", "%20")
}

// readAddress returns the address of one of the two flags.
func (d *Database) readAddress() (string, error) {
	switch {
	case !d.IsGiven():
		return "", fmt.Errorf("--%s or --%[1]s-file is needed", d.name)
	case d.address != "" && d.file != "":
		return "", fmt.Errorf("--%s and --%[1]s-file name the same database; give one", d.name)
	case hasPassword(d.address):
		return "", d.errPassword()
	case d.address != "":
		return d.address, nil
	}
	data, err := os.ReadFile(d.file)
	if err != nil {
		return "", fmt.Errorf("--%s-file: %w", d.name, err)
	}
	address := strings.TrimSpace(string(data))
	if address == "" {
		return "", errors.New("--" + d.name + "-file: the file is empty")
	}
	return address, nil
}

// passwordKey finds a password in an address of keywords and values. It also finds one within a
// quoted value, which is refused, too.
var passwordKey = regexp.MustCompile(`(?i)(^|[\s'])(ssl)?password\s*=`)

// hasPassword reports whether the address of a database has a password: in one of the usual forms, or in
// a form that only the database driver reads.
func hasPassword(address string) bool {
	return showsPassword(address) || pgsession.HasPassword(address)
}

// showsPassword reports whether an address shows a password. It does not parse the address strictly: the
// database driver accepts forms that net/url refuses, such as several hosts.
func showsPassword(address string) bool {
	scheme, rest, isURL := strings.Cut(address, "://")
	if !isURL || strings.ContainsAny(scheme, " =") {
		return passwordKey.MatchString(address)
	}
	rest, _, _ = strings.Cut(rest, "#")
	rest, query, _ := strings.Cut(rest, "?")
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		if _, password, _ := strings.Cut(rest[:at], ":"); password != "" {
			return true
		}
	}
	for pair := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' }) {
		key, _, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(key); err == nil {
			key = plain
		}
		if strings.EqualFold(key, "password") || strings.EqualFold(key, "sslpassword") {
			return true
		}
	}
	return false
}
