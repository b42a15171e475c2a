package region

import (
	"fmt"

	"atoll.dev/pki"
)

// Ports of the lifecycle manager.
const (
	clmPort  = "clm-http"
	plainCLM = "clm-http-plain"
)

// clm is the lifecycle manager: its API.
func (t topology) clm() Spec {
	args := []string{"clm", "--dsn", t.db.DSN(clmDatabase, clmDatabase), "--http", t.address(clmPort)}
	ports := []string{clmPort}
	if t.st.Insecure {
		args, ports = append(args, "--insecure-listen", t.address(plainCLM)), append(ports, plainCLM)
	}
	return t.identified(t.service(Spec{
		Name: clmName, Address: t.url(clmPort), Phase: phaseServices, After: []string{postgresName, pkiName}, Args: args, Env: t.tracing(),
	}, append(ports, "clm-ops")...), pki.ServiceName(clmName), t.home.Path("identities", clmName))
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
