package clm

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// complete sets the defaults of keys without a value.
func (c *Config) complete() {
	c.Server.Host, c.Server.Port = cmp.Or(c.Server.Host, "localhost"), cmp.Or(c.Server.Port, 8000)
	db := &c.Database
	db.Dialect, db.Host, db.Port = cmp.Or(db.Dialect, "postgres"), cmp.Or(db.Host, "localhost"), cmp.Or(db.Port, 5432)
	db.Name, db.Username, db.SSL.Mode = cmp.Or(db.Name, "hyperfleet"), cmp.Or(db.Username, "hyperfleet"),
		cmp.Or(db.SSL.Mode, "disable")
	db.HistoryMaxAge = cmp.Or(db.HistoryMaxAge, historyMemory)
	db.Pool.MaxConnections = cmp.Or(db.Pool.MaxConnections, 16)
	c.Logging.Level, c.Logging.Format, c.Logging.Output = cmp.Or(c.Logging.Level, "info"), cmp.Or(c.Logging.Format,
		"json"), cmp.Or(c.Logging.Output, "stderr")
	if c.Server.WatchesPerCaller == nil {
		c.Server.WatchesPerCaller = new(DefaultWatchesPerCaller)
	}
	for name, limit := range DefaultQuotas() {
		if configured := c.quota(name); *configured == nil {
			*configured = new(int(limit))
		}
	}
	c.Metrics.ReconciliationStuckThreshold = cmp.Or(c.Metrics.ReconciliationStuckThreshold, 10*time.Minute)
	c.Health.ShutdownTimeout = cmp.Or(c.Health.ShutdownTimeout, 5*time.Second)
	if c.Server.JWT.Enabled == nil {
		given := len(c.Server.JWT.Configs) > 0
		c.Server.JWT.Enabled = &given
	}
	if c.Tracing.Enabled == nil {
		c.Tracing.Enabled = c.Logging.OTel.Enabled
	}
}

// quota returns the key of the default limit of a quota.
func (c *Config) quota(name string) **int {
	switch q := &c.Server.Quotas; name {
	case QuotaClusters:
		return &q.Clusters
	case QuotaNodePools:
		return &q.NodePools
	case QuotaNodes:
		return &q.Nodes
	default:
		return &q.Works
	}
}

// Quotas returns the default limits of accounts.
func (c *Config) Quotas() map[string]int64 {
	limits := make(map[string]int64, len(quotaNames))
	for _, name := range quotaNames {
		limits[name] = int64(**c.quota(name))
	}
	return limits
}

// check returns an error that names all keys with invalid values, nil if there are none.
func (c *Config) check() error {
	var wrong []error
	add := func(key, format string, args ...any) { wrong = append(wrong, fmt.Errorf(key+": "+format, args...)) }
	oneOf := func(key, value string, values ...string) {
		if !slices.Contains(values, value) {
			add(key, "%q is not one of %s", value, strings.Join(values, ", "))
		}
	}
	oneOf("database.dialect", c.Database.Dialect, "postgres")
	oneOf("database.ssl.mode", c.Database.SSL.Mode, "disable", "require", "verify-ca", "verify-full")
	oneOf("logging.level", c.Logging.Level, "debug", "info", "warn", "error")
	oneOf("logging.format", c.Logging.Format, "json", "text")
	oneOf("logging.output", c.Logging.Output, "stderr", "stdout")
	for key, port := range map[string]int{"server.port": c.Server.Port, "database.port": c.Database.Port,
		"metrics.port": c.Metrics.Port, "health.port": c.Health.Port} {
		if port < 0 || port > 65535 {
			add(key, "%d is no port", port)
		}
	}
	for key, d := range map[string]time.Duration{
		"server.timeouts.read": c.Server.Timeouts.Read, "server.timeouts.write": c.Server.Timeouts.Write,
		"metrics.reconciliation_stuck_threshold": c.Metrics.ReconciliationStuckThreshold,
		"health.shutdown_timeout":                c.Health.ShutdownTimeout,
	} {
		if d < 0 {
			add(key, "%s is negative", d)
		}
	}
	for key, t := range map[string]TLSFiles{"server.tls": c.Server.TLS, "metrics.tls": c.Metrics.TLS,
		"health.tls": c.Health.TLS} {
		if t.Enabled && (t.CertFile == "" || t.KeyFile == "") {
			add(key, "cert_file and key_file are needed")
		}
	}
	if n := *c.Server.WatchesPerCaller; n < 0 {
		add("server.watches_per_caller", "%d is less than 0", n)
	}
	for name, limit := range c.Quotas() {
		if err := checkQuota(name, limit); err != nil {
			add("server.quotas."+name, "%d %s", limit, err)
		}
	}
	if n := c.Server.MaxResourceBytes; n < 0 || n > 64<<20 {
		add("server.max_resource_bytes", "%d is not between 0 (the default) and 67108864", n)
	}
	if c.Database.HistoryMaxAge < 24*time.Hour {
		add("database.history_max_age", "%s is less than a day", c.Database.HistoryMaxAge)
	}
	if n := c.Database.Pool.MaxConnections; n < 1 || n > 200 {
		add("database.pool.max_connections", "%d is not between 1 and 200", n)
	}
	if *c.Server.JWT.Enabled && len(c.Server.JWT.Configs) == 0 {
		add("server.jwt.configs", "names no issuer whose tokens could be verified")
	}
	if err := c.Server.Tenant.check(); err != nil {
		wrong = append(wrong, fmt.Errorf("server.tenant: %w", err))
	}
	slices.SortFunc(wrong, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(wrong...)
}

// check returns an error for a tenancy in which a caller could have no tenant.
func (t Tenancy) check() error {
	if !t.Enabled {
		return nil
	}
	if t.SystemHeader == "" {
		return errors.New("system_header is needed")
	}
	headers, claims, keys, required := map[string]bool{strings.ToLower(t.SystemHeader): true}, map[string]bool{},
		map[string]bool{}, false
	for i, d := range t.Dimensions {
		header := strings.ToLower(d.Header)
		switch {
		case d.Header == "" || d.Key == "":
			return fmt.Errorf("dimensions[%d]: header and key are needed", i)
		case headers[header] || keys[d.Key]:
			return fmt.Errorf("dimensions[%d]: header %s or key %s is there twice", i, d.Header, d.Key)
		case d.Claim != "" && claims[d.Claim]:
			return fmt.Errorf("dimensions[%d]: claim %s is there twice", i, d.Claim)
		}
		headers[header], claims[d.Claim], keys[d.Key], required = true, true, true, required || d.Required
	}
	if !required {
		return errors.New("at least one of the dimensions must be required")
	}
	return nil
}

// DSN returns the connection string of the database, with the password.
func (c *Config) DSN() string {
	db := c.Database
	quote := func(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'" }
	dsn := fmt.Sprintf("host=%s port=%d dbname=%s user=%s sslmode=%s", quote(db.Host), db.Port, quote(db.Name),
		quote(db.Username), db.SSL.Mode)
	if db.Password != "" {
		dsn += " password=" + quote(db.Password)
	}
	if db.SSL.RootCertFile != "" {
		dsn += " sslrootcert=" + quote(db.SSL.RootCertFile)
	}
	return dsn
}

// Address returns the address on which the API listens.
func (c *Config) Address() string {
	return net.JoinHostPort(c.Server.Host, strconv.Itoa(c.Server.Port))
}

// Address returns the address on which the endpoint listens; port counts if the endpoint names none.
func (e Endpoint) Address(port int) string {
	return net.JoinHostPort(cmp.Or(e.Host, "localhost"), strconv.Itoa(cmp.Or(e.Port, port)))
}
