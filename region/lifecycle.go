package region

import (
	"context"
	"fmt"
	"os"

	"atoll.dev/client"
	"atoll.dev/pki"
)

// Ports of the lifecycle manager.
const (
	clmPort  = "clm-http"
	plainCLM = "clm-http-plain"
)

// CLMConfig is CLM's configuration. What is made for an account, and all below
// it, is seen by calls for that account and by the system's own, which name none.
// The system's header is that of hyperfleet-api's own callers at a plain listener.
const CLMConfig = `server:
  tenant:
    enabled: true
    system_header: X-HyperFleet-System
    dimensions: [{header: ` + client.TenantHeader + `, key: account, required: true}]
`

// clm is the lifecycle manager: its API, and the sentinel.
func (t topology) clm() Spec {
	config := t.home.Path("clm.yaml")
	args := []string{"clm", "--config", config, "--dsn", t.db.DSN(clmDatabase, clmDatabase), "--http", t.address(clmPort), "--mqtt", t.address("mqtt"), "--sentinel-name", "region"}
	ports := []string{clmPort}
	if t.st.Insecure {
		args, ports = append(args, "--insecure-listen", t.address(plainCLM)), append(ports, plainCLM)
	}
	return t.identified(t.service(Spec{
		Name: clmName, Address: t.url(clmPort), Phase: phaseServices, After: []string{postgresName, pkiName, brokerName}, Args: args, Env: t.tracing(),
		Prepare: func(context.Context) error { return os.WriteFile(config, []byte(CLMConfig), 0o600) },
	}, append(ports, "clm-ops")...), pki.ServiceName(clmName), t.home.Path("identities", clmName))
}

// adapter is the process that runs the region's adapters: cl-maestro, and those
// that somebody puts into the home's directory adapters.
func (t topology) adapter() Spec {
	dir := t.home.Path("adapters")
	env := t.tracing()
	if len(t.st.Clusters) > 0 { // where a cluster goes that does not say so
		env = append(env, "ATOLL_TARGET_CLUSTER="+t.st.Clusters[0])
	}
	return t.identified(t.service(Spec{
		Name: adapterName, Phase: phaseEdges, After: []string{pkiName, brokerName, maestroName, clmName}, Env: env,
		Args: []string{"adapter", "serve", "--bundled", "cl-maestro", "--dir", dir, "--mqtt", t.address("mqtt"), "--clm", t.url(clmPort),
			"--maestro", t.url("maestro-http"), "--maestro-grpc", t.address("maestro-grpc")},
		Prepare: func(context.Context) error { return os.MkdirAll(dir, 0o700) },
	}, "adapter-ops"), pki.ServiceName(adapterName), t.home.Path("identities", adapterName))
}

// tracing are the variables by which a service knows where its spans go.
func (t topology) tracing() []string {
	if t.st.Traces == "" {
		return nil
	}
	return []string{"HYPERFLEET_TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=" + t.st.Traces, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"}
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
