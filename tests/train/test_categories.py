"""Ids of categories."""

from debgcd.run.categories import categories


def test_known_classes_come_first_and_new_ones_are_numbered() -> None:
    found = categories(["cat", "dog"], 4)
    assert [category.id for category in found] == ["cat", "dog", "new-01", "new-02"]
    assert [category.category for category in found] == [0, 1, 2, 3]
    assert [category.known for category in found] == [True, True, False, False]


def test_a_class_named_like_a_discovered_category_keeps_its_name_to_itself() -> None:
    assert [category.id for category in categories(["cat", "new-01"], 4)] == ["cat", "new-01", "new-02", "new-03"]


def test_ids_have_as_many_digits_as_there_are_categories() -> None:
    found = categories(["cat"], 150)
    assert (found[1].id, found[-1].id) == ("new-001", "new-149")
