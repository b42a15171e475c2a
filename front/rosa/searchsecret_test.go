package rosa

import (
	"net/http/httptest"
	"net/url"
	"testing"
)

func TestI11ASearchReadsNoManifests(t *testing.T) {
	for text, refused := range map[string]bool{
		`payload->'metadata'->'labels'->>'app' = 'data'`:   false,
		`payload ->> 'source' = 'x' and name = 'y'`:        false,
		`consumer_name = 'mc1'`:                            false,
		``:                                                 false,
		`payload->>'data' ilike '%a%'`:                     true,
		`payload -> 'data' ->> 'manifests' like 'a%'`:      true,
		`resources.payload->'data'->'manifests' @> '[{}]'`: true,
		`payload @> '{"data":{}}'`:                         true,
		`payload->'metadata'->>'name'='a' or payload->>'data' like '%b%'`: true,
		`PAYLOAD->>'DATA' like 'a'`:                                       true,
		`payload->>'d\ata' like 'a'`:                                      true,
		`"payload"->>'data' like 'a'`:                                     true,
	} {
		for _, parameter := range []string{"search", "orderBy"} {
			r := httptest.NewRequest("GET", "/api/v0/resource_bundles?"+url.Values{parameter: {text}}.Encode(), nil)
			if err := checkSearch(r); (err != nil) != refused {
				t.Errorf("%s=%s: %v", parameter, text, err)
			}
		}
	}
}
