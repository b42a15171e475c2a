package pgsession

import "testing"

func TestNoProgramGetsThePasswordAsAnArgument(t *testing.T) {
	for _, test := range []struct{ server, address, password string }{
		{"postgres://copy:s3cret@db:5433/a?sslmode=disable", "postgres://copy@db:5433/a?sslmode=disable", "s3cret"},
		{"postgres://copy@db/a?password=s3cret&sslmode=disable", "postgres://copy@db/a?sslmode=disable", "s3cret"},
		{"host=db user=copy sslmode=disable", "host=db user=copy sslmode=disable", ""},
	} {
		address, password, err := SplitPassword(test.server)
		if err != nil || address != test.address || password != test.password {
			t.Errorf("%s becomes %q and %q, %v", test.server, address, password, err)
		}
	}
	for _, server := range []string{"host=db user=copy password=s3cret sslmode=disable",
		"postgres://copy@db/a?sslpassword=s3cret&sslmode=disable"} {
		if address, _, err := SplitPassword(server); err == nil {
			t.Errorf("%s was taken, as %s", server, address)
		}
	}
}
