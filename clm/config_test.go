package clm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"atoll.dev/cluster"
	"atoll.dev/internal/strictyaml"
)

func none(string) string { return "" }

func noFlag(string) (string, bool) { return "", false }

// from looks things up in a map.
func from(m map[string]string) func(string) string {
	return func(name string) string { return m[name] }
}

func flags(m map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

func write(t testing.TB, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestEveryKeyOfAConfigurationIsRead(t *testing.T) {
	c, err := LoadConfig("testdata/config.yaml", none, noFlag)
	if err != nil {
		t.Fatal(err)
	}
	for what, pair := range map[string][2]any{
		"address":      {c.Address(), "0.0.0.0:8001"},
		"schemas":      {c.Server.OpenAPISchemaPath, "/schemas/openapi.yaml"},
		"write":        {c.Server.Timeouts.Write, 30 * time.Second},
		"tls":          {c.Server.TLS, TLSFiles{true, "/tls/tls.crt", "/tls/tls.key"}},
		"issuer":       {c.Server.JWT.Configs[0].IdentityHeader, "X-HyperFleet-Identity"},
		"tenancy":      {c.Server.Tenant.Dimensions[1], Dimension{Header: "X-HyperFleet-Project", Key: "project"}},
		"stuck":        {c.Metrics.ReconciliationStuckThreshold, 20 * time.Minute},
		"metrics":      {c.Metrics.Address(9090), "0.0.0.0:9091"},
		"health":       {c.Health.Address(8080), "0.0.0.0:8081"},
		"shutdown":     {c.Health.ShutdownTimeout, 20 * time.Second},
		"tracing":      {*c.Tracing.Enabled, false},
		"level":        {c.Logging.Level, "debug"},
		"connections":  {c.Database.Pool.MaxConnections, 50},
		"required":     {c.Registry().Entities()[0].RequiredAdapters[0], cluster.Adapter("dns")},
		"parent":       {c.Registry().Entities()[1].ParentKind, "Cluster"},
		"condition":    {c.Registry().Entities()[1].Conditions[0].When.Text, "statuses.size() > 0"},
		"server given": {c.ServerGiven, true},
	} {
		if diff := cmp.Diff(pair[1], pair[0]); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	parsed, err := pgx.ParseConfig(strings.Replace(c.DSN(), "verify-full sslrootcert='/ca.crt'", "disable", 1))
	if err == nil {
		t.Errorf("the DSN lost its CA: %v", parsed)
	}
	c.Database.SSL.Mode, c.Database.SSL.RootCertFile = "disable", ""
	if parsed, err = pgx.ParseConfig(c.DSN()); err != nil || parsed.Host != "db.example.com" || parsed.Port != 5433 ||
		parsed.Password != `it's a \ secret` || parsed.Database != "fleet" {
		t.Errorf("the DSN: %v %v", err, parsed)
	}
}

func TestDefaultsOfAnEmptyConfiguration(t *testing.T) {
	c, err := LoadConfig("", none, noFlag)
	if err != nil {
		t.Fatal(err)
	}
	if c.ServerGiven || *c.Server.JWT.Enabled || c.Address() != "localhost:8000" || c.Tracing.Enabled != nil ||
		len(c.Registry().Entities()) != 7 ||
		c.Metrics.ReconciliationStuckThreshold != 10*time.Minute || c.Health.Given() || c.Logging.Level != "info" {
		t.Errorf("%+v", c)
	}
	if c, err = LoadConfig(write(t, "\n# nothing\n"), none, noFlag); err != nil || !c.ServerGiven ||
		len(c.Registry().Entities()) != 7 {
		t.Errorf("an empty file: %v %+v", err, c)
	}
}

func TestFlagsOverrideVariablesAndVariablesTheFile(t *testing.T) {
	file := write(t, "server: {port: 1}\ndatabase: {password: of-file, host: h1}\nlogging: {level: warn}")
	env := map[string]string{}
	flag := map[string]string{}
	load := func() *Config {
		t.Helper()
		c, err := LoadConfig(file, from(env), flags(flag))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	port := func(want int) {
		t.Helper()
		if got := load().Server.Port; got != want {
			t.Fatalf("port %d, want %d", got, want)
		}
	}
	port(1)
	env["HYPERFLEET_SERVER_PORT"] = "2"
	port(2)
	flag["server-port"] = "3"
	port(3)

	is(t, "the password", load().Database.Password, "of-file")
	secret := write(t, "of-secret\n")
	env["HYPERFLEET_DATABASE_PASSWORD_FILE"] = secret
	is(t, "the password", load().Database.Password, "of-secret")
	env["HYPERFLEET_DATABASE_PASSWORD"] = "of-env"
	is(t, "the password", load().Database.Password, "of-env")
	env["HYPERFLEET_LOGGING_LEVEL"] = "debug"
	env["HYPERFLEET_SERVER_JWT_ENABLED"] = "false"
	env["HYPERFLEET_METRICS_RECONCILIATION_STUCK_THRESHOLD"] = "90s"
	if c := load(); c.Logging.Level != "debug" || *c.Server.JWT.Enabled ||
		c.Metrics.ReconciliationStuckThreshold != 90*time.Second {
		t.Errorf("%+v", c)
	}
	file = write(t, "database: {password_file: "+secret+", password: weak}")
	delete(env, "HYPERFLEET_DATABASE_PASSWORD")
	delete(env, "HYPERFLEET_DATABASE_PASSWORD_FILE")
	is(t, "the password", load().Database.Password, "of-secret")
}

func TestConfigurationErrorsNameTheLine(t *testing.T) {
	for text, wantText := range map[string][]string{
		"server:\n  prot: 1\nnope: 2\n": {
			"config.yaml:2: unknown key prot", "config.yaml:3: unknown key nope"},
		"server:\n  port: eighty\n": {
			"config.yaml:2: `eighty` is not a number"},
		"server:\n  timeouts:\n    read: soon\n": {
			"config.yaml:3: `soon` is not a duration"},
		"server: 1\n  port: 2\n": {
			"config.yaml:2:"},
		"server: {port: 1}\nserver: {port: 2}\n": {
			"config.yaml:2:", "already defined"},
		"server: {}\n---\nserver: {}\n": {
			"more than one document"},
		"entities:\n- kind: A\n  plural: as\n- kind: B\n  plural: as\n": {
			"config.yaml:4: entity 1 (B)", "A's, too"},
		"entities:\n\n- kind: A\n  plural: as\n  parent_kind: C\n": {
			"config.yaml:3: entity 0 (A)", "C is not an entity"},
		"entities:\n- kind: A\n  plural: as\n  required_adapter: [x]\n": {
			"config.yaml:4: unknown key required_adapter"},
		"entities:\n- {kind: A, plural: as, conditions: [{type: X, when: {expression: 'a +'}}]}": {
			"config.yaml:2: entity 0 (A)"},
		"server: {port: 70000}\nlogging: {level: loud}\ndatabase: {dialect: mysql, ssl: {mode: perhaps}}": {
			"server.port: 70000", "logging.level: \"loud\"", "database.dialect", "database.ssl.mode"},
		"server: {jwt: {enabled: true}}":    {"server.jwt.configs: names no issuer"},
		"server: {tls: {enabled: true}}":    {"server.tls: cert_file and key_file"},
		"server: {tenant: {enabled: true}}": {"server.tenant: system_header"},
		"server: {tenant: {enabled: true, system_header: X, dimensions: [{header: A, key: a}]}}": {
			"must be required"},
		"server: {tenant: {enabled: true, system_header: X, dimensions: [{header: x, key: a}]}}": {
			"twice"},
		"database: {password_file: /no/such/file}": {
			"database.password", "/no/such/file"},
		"database: {pool: {max_connections: 1000}}\nhealth: {shutdown_timeout: -1s}\nmetrics: {port: -1}\n": {
			"max_connections", "shutdown_timeout", "metrics.port"},
		"entities: [{kind: A, plural: as, references: [{ref_type: x, target_kind: A, min: 1, maximum: 3}]}]\n": {
			"config.yaml:1: unknown key maximum"},
	} {
		_, err := LoadConfig(write(t, text), none, noFlag)
		for _, s := range wantText {
			if err == nil || !strings.Contains(err.Error(), s) {
				t.Errorf("%q: %v, which does not say %q", text, err, s)
			}
		}
	}
	for name, env := range map[string]map[string]string{
		"HYPERFLEET_SERVER_PORT: \"x\"":     {"HYPERFLEET_SERVER_PORT": "x"},
		"HYPERFLEET_DATABASE_PASSWORD_FILE": {"HYPERFLEET_DATABASE_PASSWORD_FILE": "/no/such/file"},
		"HYPERFLEET_SERVER_TLS_ENABLED":     {"HYPERFLEET_SERVER_TLS_ENABLED": "perhaps"},
	} {
		if _, err := LoadConfig("", from(env), noFlag); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v: %v", env, err)
		}
	}
	if _, err := LoadConfig("", none, flags(map[string]string{"server-port": "x"})); err == nil ||
		!strings.Contains(err.Error(), "--server-port") {
		t.Error(err)
	}
}

// I11: an error about a secret does not show it.
func TestI11ErrorsOfAConfigurationShowNoSecret(t *testing.T) {
	secret := write(t, "hunter2")
	_, err := LoadConfig("", from(map[string]string{"HYPERFLEET_DATABASE_PORT_FILE": secret}), noFlag)
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}

func TestEverySettingCanBeSet(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Settings() {
		if seen[s.Key] || s.Flag != "" && seen["--"+s.Flag] {
			t.Errorf("%s or --%s is there twice", s.Key, s.Flag)
		}
		seen[s.Key], seen["--"+s.Flag] = true, s.Flag != ""
		var c Config
		value := map[bool]string{true: "true", false: "1"}[s.Bool]
		if strings.Contains(s.Key, "time") || strings.HasSuffix(s.Key, "duration") ||
			strings.HasSuffix(s.Key, "threshold") || strings.HasSuffix(s.Key, "interval") {
			value = "1s"
		}
		if err := strictyaml.Set(s.value(&c), value); err != nil && !strings.Contains(err.Error(), "duration") {
			t.Errorf("%s: %v", s.Key, err)
		}
	}
}

func FuzzConfig(f *testing.F) {
	text, err := os.ReadFile("testdata/config.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add("entities:\n- kind: A\n  plural: as\n  parent_kind: A\n")
	f.Add("server: &x {port: 1}\ndatabase: *x\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := LoadConfig(write(t, text), none, noFlag)
		if (err == nil) != (c != nil && c.Registry() != nil) {
			t.Errorf("%v %v", c, err)
		}
	})
}
