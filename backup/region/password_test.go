package region

import "testing"

func TestNoProgramGetsThePasswordAsAnArgument(t *testing.T) {
	for _, test := range []struct{ server, address, password string }{
		{"postgres://copy:s3cret@db:5433/a?sslmode=disable", "postgres://copy@db:5433/a?sslmode=disable", "s3cret"},
		{"postgres://copy@db/a?password=s3cret&sslmode=disable", "postgres://copy@db/a?sslmode=disable", "s3cret"},
		{"host=db user=copy sslmode=disable", "host=db user=copy sslmode=disable", ""},
	} {
		address, password, err := splitPassword(test.server)
		if err != nil || address != test.address || password != test.password {
			t.Errorf("%s becomes %q and %q, %v", test.server, address, password, err)
		}
	}
	if _, _, err := splitPassword("host=db user=copy password=s3cret sslmode=disable"); err == nil {
		t.Error("a password in a connection string that is no URL was taken")
	}
}
