package io.safekeeper.spark;

import io.safekeeper.spark.state.Family;
import io.safekeeper.spark.state.StateLog;
import java.util.HashMap;
import java.util.Map;

/** The column families of a loaded state, by name, as one store uses them. */
final class FamilyViews {
  private final FamilySpecs specs;
  private final StateLog log;
  private final FamilyView defaultView;
  private final Map<String, FamilyView> others = new HashMap<>();

  FamilyViews(FamilySpecs specs, StateLog log) {
    this.specs = specs;
    this.log = log;
    this.defaultView = view(FamilySpecs.DEFAULT, log.defaultFamily());
  }

  /** The family of that name; one that Spark has not told of is refused. */
  FamilyView get(String operation, String name) {
    if (FamilySpecs.DEFAULT.equals(name)) {
      return defaultView;
    }
    FamilyView known = others.get(name);
    if (known == null || known.family() == null) {
      specs.checkUse(operation, name);
      known = view(name, log.family(name));
      others.put(name, known);
    }
    return known;
  }

  /** The family of that name, created if the state has none. */
  FamilyView getOrCreate(String operation, String name) {
    FamilyView view = get(operation, name);
    if (view.family() == null) {
      create(name);
      view = get(operation, name);
    }
    return view;
  }

  void create(String name) {
    others.remove(name);
    log.createFamily(name);
  }

  boolean remove(String name) {
    others.remove(name);
    specs.remove(name);
    return log.removeFamily(name);
  }

  private FamilyView view(String name, Family family) {
    FamilySpec spec = specs.get(name);
    if (family != null) {
      spec.keepOrder(family);
    }
    return new FamilyView(spec, family);
  }
}
