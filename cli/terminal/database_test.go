package terminal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
)

func TestAnAddressWithAPasswordIsReadFromAFileOnly(t *testing.T) {
	t.Setenv("PGPASSWORD", "of the environment") // which is no password of an address
	file := filepath.Join(t.TempDir(), "dsn")
	const secret = "postgres://clm:hunter2@db/clm"
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args       []string
		want, fail string
	}{
		{[]string{"--dsn-file", file}, secret, ""},
		{[]string{"--dsn", "postgres://clm@db/clm"}, "postgres://clm@db/clm", ""},
		{[]string{"--dsn", "postgres://clm@h1:5432,h2:5433/clm?sslmode=disable"},
			"postgres://clm@h1:5432,h2:5433/clm?sslmode=disable", ""},
		{[]string{"--dsn", "postgres:///clm?host=/run/pg&passfile=/run/p"},
			"postgres:///clm?host=/run/pg&passfile=/run/p", ""},
		{[]string{"--dsn", "host=db user=clm passfile=/run/p"}, "host=db user=clm passfile=/run/p", ""},
		{[]string{"--dsn", secret}, "", "--dsn-file"},
		{[]string{"--dsn", "postgres://clm:hunter2@h1:5432,h2:5433/clm"}, "", "--dsn-file"},
		{[]string{"--dsn", "postgres://clm:hunter2@x@db/clm"}, "", "--dsn-file"},
		{[]string{"--dsn", "postgres://clm@db/clm?sslmode=disable&password=hunter2"}, "", "--dsn-file"},
		{[]string{"--dsn", "postgres://clm@db/clm?pass%77ord=hunter2"}, "", "--dsn-file"},
		{[]string{"--dsn", "postgres://clm@db/clm?sslpassword=hunter2"}, "", "--dsn-file"},
		{[]string{"--dsn", "host=db password=hunter2"}, "", "--dsn-file"},
		{[]string{"--dsn", "password = 'hunter2' host=db"}, "", "--dsn-file"},
		{[]string{"--dsn", "host='db'password=hunter2"}, "", "--dsn-file"},
		{[]string{"--dsn", "postgres://clm:hunter2#1@db/clm"}, "", "--dsn-file"}, // the driver knows no fragment
		{[]string{"--dsn", "postgres://clm:hunter2?1@db/clm"}, "", "--dsn-file"},
		{[]string{"--dsn", "postgres://db/clm#x?password=hunter2"}, "", "--dsn-file"},
		{[]string{"--dsn", "postgres://clm@db/clm?search_path=a&pool_max_conns=3&sslmode=require"},
			"postgres://clm@db/clm?search_path=a&pool_max_conns=3&sslmode=require", ""},
		{[]string{"--dsn", "host=db", "--dsn-file", file}, "", "give one"},
		{[]string{"--dsn-file", file + "x"}, "", "no such file"},
		{[]string{"--dsn-file", os.DevNull}, "", "empty"},
		{nil, "", "--dsn or --dsn-file is needed"},
	} {
		cmd := &cobra.Command{Use: "test"}
		database := AddDatabaseFlags(cmd, "dsn", "database")
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		got, err := database.Read()
		if got != c.want || (err == nil) != (c.fail == "") {
			t.Errorf("%v: %q, %v", c.args, got, err)
		}
		if err != nil && (!strings.Contains(err.Error(), c.fail) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}

// TestThePasswordOfAnAddressIsReadFromAFile gives addresses with the password to the driver.
func TestThePasswordOfAnAddressIsReadFromAFile(t *testing.T) {
	dir := t.TempDir()
	const password = `hunter2 '\"&?#%+=`
	file, dsn := filepath.Join(dir, "password"), filepath.Join(dir, "dsn")
	for name, text := range map[string]string{file: password + "\n", dsn: "postgres://clm:hunter2@db/clm"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(args ...string) (string, error) {
		cmd := &cobra.Command{Use: "test"}
		database := AddDatabaseFlags(cmd, "dsn", "database")
		if err := cmd.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		return database.Read()
	}
	for _, address := range []string{"host=db port=5432 dbname=clm user=clm", "postgres://clm@db/clm",
		"postgres://clm@db:5432/clm?sslmode=disable", "postgresql:///clm?host=db&user=clm"} {
		got, err := read("--dsn", address, "--dsn-password-file", file)
		if err != nil {
			t.Fatal(err)
		}
		config, err := pgconn.ParseConfig(got)
		if err != nil || config.Password != password || config.User != "clm" || config.Host != "db" {
			t.Errorf("%s: %v, the user %q of %q has the password %q", address, err, config.User, config.Host, config.Password)
		}
	}
	for want, args := range map[string][]string{
		"give one":             {"--dsn-file", dsn, "--dsn-password-file", file},
		"no such file":         {"--dsn", "host=db", "--dsn-password-file", file + "x"},
		"the file is empty":    {"--dsn", "host=db", "--dsn-password-file", os.DevNull},
		"--dsn-file is needed": {"--dsn-password-file", file},
		"--dsn has a password": {"--dsn", "host=db password=hunter2", "--dsn-password-file", file},
	} {
		if got, err := read(args...); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(),
			"hunter2") {
			t.Errorf("%v: %q, %v, want %q", args, got, err, want)
		}
	}
}
