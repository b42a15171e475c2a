package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// stage is a part of a Containerfile from FROM to the next one.
type stage struct {
	base         string
	instructions [][2]string // the word and the rest
}

// last returns the rest of the last instruction with the word.
func (s stage) last(word string) string {
	for _, i := range slices.Backward(s.instructions) {
		if i[0] == word {
			return i[1]
		}
	}
	return ""
}

// readContainerfile returns the stages by name.
func readContainerfile(t *testing.T) map[string]*stage {
	t.Helper()
	text := strings.ReplaceAll(string(mustRead(t, "../Containerfile")), "\\\n", " ")
	stages := map[string]*stage{}
	var now *stage
	for line := range strings.Lines(text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		rest = strings.Join(strings.Fields(rest), " ")
		switch {
		case word == "" || strings.HasPrefix(word, "#"):
		case word == "FROM":
			base, name, found := strings.Cut(rest, " AS ")
			if !found {
				t.Fatalf("a stage without a name: %s", line)
			}
			now = &stage{base: base}
			stages[name] = now
		case now == nil:
			t.Fatalf("%s stands before the first stage", line)
		default:
			now.instructions = append(now.instructions, [2]string{word, rest})
		}
	}
	return stages
}

// newTestConfig returns the configuration that this program gives to the image atoll.
func newTestConfig(t *testing.T) v1.Config {
	t.Helper()
	programs := compilePrograms(t)
	platforms, err := findPlatforms(programs)
	if err != nil {
		t.Fatal(err)
	}
	layers := &layerCache{options: options{programs: programs, created: time.Unix(0, 0)}, made: map[string]v1.Layer{}}
	image, err := newImage(layers, "atoll", []string{"atoll"}, platforms[0])
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return file.Config
}

func TestTheContainerfileMakesTheSameImages(t *testing.T) {
	stages, config := readContainerfile(t), newTestConfig(t)
	atoll, hosting := stages["atoll"], stages["atoll-hosting"]
	if atoll == nil || hosting == nil || !strings.HasPrefix(atoll.base, "gcr.io/distroless/static-debian12:nonroot") ||
		hosting.base != "atoll" {
		t.Fatalf("stages %v", stages)
	}
	entrypoint, _ := json.Marshal(config.Entrypoint)
	for word, want := range map[string]string{
		"USER": config.User, "ENTRYPOINT": string(entrypoint), "WORKDIR": config.WorkingDir,
		"ENV":  strings.Join(config.Env, " "),
		"COPY": "--from=build --chown=0:0 --chmod=0755 /out/atoll /usr/local/bin/atoll",
	} {
		if got := atoll.last(word); got != want {
			t.Errorf("%s of atoll is %q, want %q", word, got, want)
		}
	}
	want := [][2]string{
		{"LABEL", `org.opencontainers.image.title="atoll-hosting"`},
		{"COPY", "--from=build-kube --chown=0:0 --chmod=0755 /out-atoll-kube /usr/local/bin/atoll-kube"},
	}
	if !slices.Equal(hosting.instructions, want) {
		t.Errorf("atoll-hosting has %q, want %q", hosting.instructions, want)
	}
	for _, label := range []string{
		`title="atoll"`, `version="$VERSION"`, `revision="$REVISION"`, `licenses="Apache-2.0"`,
	} {
		if !strings.Contains(atoll.last("LABEL"), "org.opencontainers.image."+label) {
			t.Errorf("atoll has no label %s", label)
		}
	}
	for name, s := range stages {
		if name != "build" && name != "build-kube" && s.last("RUN") != "" {
			t.Errorf("%s runs %q, but its base has no shell", name, s.last("RUN"))
		}
	}
}

// Both builds compile with the same flags, and with the version of Go that the module needs.
func TestTheContainerfileCompilesAsTheScript(t *testing.T) {
	script := strings.ReplaceAll(string(mustRead(t, "../../scripts/image.sh")), "\\\n", " ")
	script = strings.Join(strings.Fields(strings.ReplaceAll(script, "$version", "$VERSION")), " ")
	stages := readContainerfile(t)
	compile := stages["build"].last("RUN")
	flags := regexp.MustCompile(`-trimpath .* -o `).FindString(compile)
	if flags == "" || !strings.Contains(script, flags) {
		t.Errorf("the script does not compile with %q", flags)
	}
	for _, variable := range []string{"CGO_ENABLED=0", "GOAMD64=v1"} {
		if !strings.Contains(compile, variable) || !strings.Contains(script, variable) {
			t.Errorf("%s is not in the Containerfile (%s) and the script", variable, compile)
		}
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(mustRead(t, "../../go.mod"))
	for _, name := range []string{"build", "build-kube"} {
		if want := "docker.io/library/golang:" + string(version[1]); stages[name].base != want {
			t.Errorf("%s is based on %s, want %s", name, stages[name].base, want)
		}
	}
}

// What the charts say about images is true of those that are built: names, user, programs and releases.
func TestTheChartsNameWhatTheImagesHave(t *testing.T) {
	var charts strings.Builder
	err := filepath.WalkDir("../charts", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeType == 0 && filepath.Ext(path) != ".md" {
			charts.Write(mustRead(t, path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pattern string
		allowed []string
		least   int
	}{
		{`\brunAs(?:User|Group): (.*)`, []string{"65532"}, 6},
		{`\bfsGroup: (.*)`, []string{"65532"}, 3},
		{`\brepository: ([\w./-]+)`, []string{"atoll", "atoll-hosting"}, 3},
		{`\bcommand: \[([^],]+)`, []string{"atoll"}, 5},
		{`\bcommand:\n\s*- (.*)`, []string{"atoll"}, 1},
		{`\breleases: \{"[\d.]+": ([^}]*)\}`, []string{"/" + programDir + "/atoll-kube"}, 1},
	} {
		found := regexp.MustCompile(c.pattern).FindAllStringSubmatch(charts.String(), -1)
		if len(found) < c.least {
			t.Errorf("%s: found %d times in the charts, want %d", c.pattern, len(found), c.least)
		}
		for _, match := range found {
			if !slices.Contains(c.allowed, match[1]) {
				t.Errorf("the charts have %q, want one of %v", match[0], c.allowed)
			}
		}
	}
	if !slices.Contains(filepath.SplitList(searchPath), "/"+programDir) {
		t.Errorf("the charts call atoll without its directory, which PATH=%s does not name", searchPath)
	}
}
