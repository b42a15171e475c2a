package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/local/azure"
	"atoll.dev/test/localtest"
	"atoll.dev/test/testsite"
)

// program runs a command of another project and keeps the environment in which it does.
type program struct {
	t   *testing.T
	bin string
	env []string
	dir string
}

// try returns what the command writes to its standard output; its error has the rest.
func (p program) try(args ...string) (string, error) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), p.bin, args...)
	cmd.Env, cmd.Dir = append(os.Environ(), p.env...), p.dir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(p.bin), strings.Join(args, " "), err, &out, &errs)
	}
	return out.String(), nil
}

// run returns the JSON document that the command writes.
func (p program) run(args ...string) (document any) {
	p.t.Helper()
	out, err := p.try(args...)
	if err != nil {
		p.t.Fatal(err)
	}
	if out == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(out), &document); err != nil {
		p.t.Fatalf("%s writes no JSON: %s", strings.Join(args, " "), out)
	}
	return document
}

// member returns the value at a path of a JSON document, and nil where nothing is there.
func member(document any, path ...string) any {
	for _, name := range path {
		object, _ := document.(map[string]any)
		document = object[name]
	}
	return document
}

// azureAccount reads the file that `atoll up --azure` writes for clients.
func azureAccount(t *testing.T, r *localtest.Region) (a azure.Client) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(r.Home, "azure", azure.ClientFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestMicrosoftsCommandLineUsesARegion takes a cluster through its life with `az`, and reads ARO classic with `az aro`.
func TestMicrosoftsCommandLineUsesARegion(t *testing.T) {
	t.Parallel()
	bin, err := exec.LookPath("az")
	if err != nil {
		t.Skipf("%v; `scripts/ensure.sh az` installs Debian's package azure-cli", err)
	}
	r := localtest.Shared(t)
	a := azureAccount(t, r)
	az := program{t: t, bin: bin, env: []string{"AZURE_CONFIG_DIR=" + t.TempDir(), "REQUESTS_CA_BUNDLE=" + a.CA,
		"AZURE_CORE_OUTPUT=json", "AZURE_CORE_ONLY_SHOW_ERRORS=true", "AZURE_CORE_COLLECT_TELEMETRY=no"}}

	az.run("cloud", "register", "--name", "atoll", "--endpoint-resource-manager", a.Endpoint)
	az.run("cloud", "set", "--name", "atoll")
	if out, err := az.try("login", "--service-principal", "--username", a.ID, "--password", "wrong", "--tenant",
		a.Tenant); err == nil {
		t.Fatalf("a wrong secret signs in: %s", out)
	}
	az.run("login", "--service-principal", "--username", a.ID, "--password", a.Secret, "--tenant", a.Tenant)
	if shown := az.run("account", "show"); member(shown, "id") != a.Subscription ||
		member(shown, "state") != "Enabled" {
		t.Fatalf("the account: %v", shown)
	}

	group := "/subscriptions/" + a.Subscription + "/resourceGroups/az"
	id := group + "/providers/Microsoft.RedHatOpenShift/hcpOpenShiftClusters/az"
	network := group + "/providers/Microsoft.Network"
	body, err := json.Marshal(map[string]any{"location": a.Location, "properties": map[string]any{
		"platform": map[string]any{"subnetId": network + "/virtualNetworks/v/subnets/s",
			"networkSecurityGroupId": network + "/networkSecurityGroups/g"}}})
	if err != nil {
		t.Fatal(err)
	}
	const version = "2026-09-01-preview"
	resource := func(command string, args ...string) any {
		t.Helper()
		return az.run(append([]string{"resource", command, "--ids", id, "--api-version", version}, args...)...)
	}
	succeeded := func(made any) {
		t.Helper()
		if state := member(made, "properties", "provisioningState"); state != "Succeeded" {
			t.Fatalf("the state is %v: %v", state, made)
		}
	}
	// This command waits for the operation, by its header Azure-AsyncOperation.
	succeeded(az.run("resource", "create", "--id", id, "--api-version", version, "--is-full-object", "--properties",
		string(body)))
	succeeded(resource("show"))
	// `az rest` sends a request as it is.
	listed := az.run("rest", "--url", filepath.Dir(id)+"?api-version="+version)
	if values, _ := member(listed, "value").([]any); len(values) != 1 || member(values[0], "name") != "az" {
		t.Errorf("the list of clusters: %v", listed)
	}
	az.run("rest", "--method", "patch", "--url", id+"?api-version="+version, "--body", `{"tags":{"team":"shop"}}`)
	resource("wait", "--custom", "properties.provisioningState=='Succeeded'", "--interval", "1")
	if shown := resource("show"); member(shown, "tags", "team") != "shop" {
		t.Errorf("after a patch: %v", shown)
	}
	request, err := json.Marshal(map[string]string{"certificateSigningRequest": testsite.AdminCertificateRequest(t)})
	if err != nil {
		t.Fatal(err)
	}
	// The command returns the operation. Its result, to which Location points, is at the operation's URL of results.
	operation := resource("invoke-action", "--action", "requestAdminCredential", "--request-body", string(request))
	status, _ := member(operation, "id").(string)
	credential := az.run("rest", "--url", strings.Replace(status, "Statuses", "Results", 1)+"?api-version="+version)
	if text, _ := member(credential, "kubeconfig").(string); !strings.Contains(text, "client-certificate-data") {
		t.Errorf("the credential: %v", credential)
	}
	resource("delete")
	if out, err := az.try("resource", "show", "--ids", id, "--api-version", version); err == nil ||
		!strings.Contains(err.Error(), "ResourceNotFound") {
		t.Errorf("after its deletion: %s %v", out, err)
	}

	if clusters, _ := az.run("aro", "list").([]any); len(clusters) != 0 {
		t.Errorf("clusters of ARO classic: %v", clusters)
	}
	for _, command := range []string{"show", "list-credentials"} {
		if out, err := az.try("aro", command, "--resource-group", "az", "--name", "absent"); err == nil ||
			!strings.Contains(err.Error(), "ResourceNotFound") {
			t.Errorf("az aro %s of an absent cluster: %s %v", command, out, err)
		}
	}
}

// azapiModule is the provider of Terraform that the test runs. It is the latest whose version is valid for Go.
const azapiModule = "github.com/Azure/terraform-provider-azapi@v1.15.0"

// TestTerraformUsesARegion applies examples/azure-terraform, changes it, finds no drift and destroys it.
func TestTerraformUsesARegion(t *testing.T) {
	t.Parallel()
	bin, err := exec.LookPath("terraform")
	if err != nil {
		t.Skip(err)
	}
	provider, err := exec.LookPath("terraform-provider-azapi")
	if err != nil {
		t.Skipf("%v; `go install %s` builds it", err, azapiModule)
	}
	r := localtest.Shared(t)
	a := azureAccount(t, r)
	dir := t.TempDir()
	main, err := os.ReadFile("../../examples/azure-terraform/main.tf")
	if err != nil {
		t.Fatal(err)
	}
	variables, err := json.Marshal(map[string]string{"account": filepath.Join(r.Home, "azure", azure.ClientFile),
		"certificate_signing_request": testsite.AdminCertificateRequest(t)})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"main.tf": main, "terraform.tfvars.json": variables,
		"terraform.rc": fmt.Appendf(nil, "provider_installation {\n dev_overrides { \"Azure/azapi\" = %q }\n}\n",
			filepath.Dir(provider))} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	terraform := program{t: t, bin: bin, dir: dir, env: []string{"SSL_CERT_FILE=" + a.CA, "CHECKPOINT_DISABLE=1",
		"TF_CLI_CONFIG_FILE=" + filepath.Join(dir, "terraform.rc"), "TF_IN_AUTOMATION=1"}}
	do := func(args ...string) {
		t.Helper()
		if _, err := terraform.try(args...); err != nil {
			t.Fatal(err)
		}
	}
	do("apply", "-auto-approve", "-no-color")
	defer terraform.try("destroy", "-auto-approve", "-no-color") // of a test that failed
	output := func() any { t.Helper(); return terraform.run("output", "-json") }
	made := output()
	for _, name := range []string{"cluster", "workers"} {
		if state := member(made, name, "value", "properties", "provisioningState"); state != "Succeeded" {
			t.Errorf("%s is %v: %v", name, state, made)
		}
	}
	if text, _ := member(made, "kubeconfig", "value", "kubeconfig").(string); !strings.Contains(text,
		"client-certificate-data") {
		t.Errorf("the credential: %v", member(made, "kubeconfig", "value"))
	}
	// With -detailed-exitcode a difference between the configuration and the region is an error.
	do("plan", "-detailed-exitcode", "-no-color")
	do("apply", "-auto-approve", "-no-color", "-var", "replicas=3")
	do("plan", "-detailed-exitcode", "-no-color", "-var", "replicas=3")
	do("destroy", "-auto-approve", "-no-color")
}
