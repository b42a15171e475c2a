package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"atoll.dev/client/clmclient"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/pki"
)

// Ports of the lifecycle manager.
const (
	clmPort  = "clm-http"
	plainCLM = "clm-http-plain"
)

// CLMConfig is the configuration of CLM. Calls for an account see only resources of that account
// and those below them; calls of the system, which name no account, see all. The header of the
// system is that of hyperfleet-api's own callers at a plain listener.
const CLMConfig = `server:
  tenant:
    enabled: true
    system_header: X-HyperFleet-System
    dimensions: [{header: ` + clmclient.TenantHeader + `, key: account, required: true}]
`

// clm returns a process of the lifecycle manager: its API, and the sentinel.
func (t topology) clm(r replica) Spec {
	config := t.home.Path("clm.yaml")
	args := []string{"clm", "--config", config, "--dsn", t.db.DSN(clmDatabase, clmDatabase), "--http",
		t.address(clmPort), "--mqtt", t.address("mqtt"), "--sentinel-name", strings.Replace(r.name(), clmName, "region", 1),
		"--maestro", t.url("maestro-http")}
	for _, release := range selectReleases(t.st.declaredSettings().Releases, t.bin.releases()) {
		args = append(args, "--release", release)
	}
	if after := t.st.recoverLostAfter(); after != "" {
		args = append(args, "--recover-lost-after", after)
	}
	ports := []string{clmPort}
	if t.st.Insecure {
		args, ports = append(args, "--insecure-listen", t.address(plainCLM)), append(ports, plainCLM)
	}
	return t.withIdentity(t.withSharedPorts(t.completeService(Spec{
		Name: r.name(), Address: t.url(clmPort), Phase: phaseServices,
		After: r.startsAfter(postgresName, pkiName, brokerName),
		Args:  args, Env: t.tracingEnv(), Prepare: func(context.Context) error { return t.writeCLMConfig(config) },
	}, append(ports, r.opsPort())...)), pki.ServiceName(clmName), t.home.Path("identities", r.name()))
}

// writeCLMConfig writes CLM's configuration. A file entities.yaml in the home, with the key
// entities and no other, replaces the default entities.
func (t topology) writeCLMConfig(file string) error {
	entities, err := os.ReadFile(t.home.Path("entities.yaml"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return atomicfile.Write(file, append([]byte(CLMConfig), entities...), 0o600)
}

// adapter returns a process that runs the region's adapters: the bundled ones, and those in the
// home's directory adapters.
func (t topology) adapter(r replica) Spec {
	dir := t.home.Path("adapters")
	env := append(t.tracingEnv(), "ATOLL_BASE_DOMAIN="+t.baseDomain())
	if len(t.st.Clusters) > 0 { // the default management cluster of cl-maestro's clusters
		env = append(env, string("ATOLL_TARGET_CLUSTER="+t.st.Clusters[0]))
	}
	args := []string{"adapter", "serve", "--dir", dir, "--mqtt", t.address("mqtt"), "--clm", t.url(clmPort),
		"--maestro", t.url("maestro-http"), "--maestro-grpc", t.address("maestro-grpc")}
	if names := t.adaptersToRun(); len(names) > 0 {
		args = append(args, "--bundled", strings.Join(names, ","))
	}
	return t.withIdentity(t.completeService(Spec{
		Name: r.name(), Phase: phaseEdges, After: r.startsAfter(pkiName, brokerName, maestroName, clmName), Env: env,
		Args:    args,
		Prepare: func(context.Context) error { return os.MkdirAll(dir, 0o700) },
	}, r.opsPort()), pki.ServiceName(adapterName), t.home.Path("identities", r.name()))
}

// tracingEnv returns the environment variables that send the spans of a service to the collector.
func (t topology) tracingEnv() []string {
	collector := t.st.traces()
	if collector == "" {
		return nil
	}
	return []string{"HYPERFLEET_TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=" + collector,
		"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"}
}

// CLMAddress is the URL of the lifecycle manager's API.
func (h Home) CLMAddress() (string, error) {
	st, err := h.State()
	if err != nil {
		return "", err
	}
	if st.Ports[clmPort] == 0 {
		return "", fmt.Errorf("%s: the region has no lifecycle manager yet; `atoll up` adds it", h.Dir)
	}
	return newTopology(h, st, Binaries{}).url(clmPort), nil
}

// baseDomain returns the domain of the names of hosted clusters.
func (t topology) baseDomain() string {
	return cmp.Or(t.st.declaredSettings().BaseDomain, "hosted."+t.st.Region+".atoll.internal")
}
