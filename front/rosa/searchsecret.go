package rosa

import (
	"net/http"
	"regexp"
	"strings"

	"atoll.dev/internal/rest"
)

// payloadMember finds the field payload in a search, and the plain name of the member that the
// search reads from it.
var payloadMember = regexp.MustCompile(`(?i)\bpayload\b(?:\s*->>?\s*'([a-z_]+)')?`)

// checkSearch refuses a search or an order that reads the manifests of bundles: their Secrets are
// masked in answers, and the results of a search would reveal their values (I11). It knows the
// word payload only, so it also refuses a text with that word. Other members of the payload,
// such as metadata, stay searchable.
func checkSearch(r *http.Request) error {
	for _, parameter := range []string{"search", "orderBy"} {
		for _, text := range r.URL.Query()[parameter] {
			for _, match := range payloadMember.FindAllStringSubmatch(text, -1) {
				if match[1] == "" || strings.EqualFold(match[1], "data") {
					return rest.Errorf(http.StatusBadRequest, codeBadFields,
						"%s may not read the manifests of bundles, which may be Secrets; search by "+
							"payload->'metadata', consumer_name, name or source", parameter)
				}
			}
		}
	}
	return nil
}
